"""The commands of the shell: Hydra composes the options of conf/, and one function of the package does the work."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import sys
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

from translator.config.presets import CONF
from translator.runtime.errors import UserError, unknown


class Command(NamedTuple):
    """A command of the shell."""

    help: str
    work: str  # module:function of the package, which takes the options
    config: str  # the file of conf/ with its options
    takes_named: bool = False  # its argument `named` gets the names of the options given
    takes_defaults: bool = False  # its argument `defaults` gets the options of a training where none are given


# To add one: its function, its options in conf/ and config/commands.py, and a line here and in the Makefile.
COMMANDS = {
    "train": Command(
        "Train a model, or resume", "training.train:train", "train", takes_named=True),
    "teach": Command(
        "Train a student on the translations of data.teacher=...", "training.student:teach", "train", takes_named=True),
    "corpora": Command(
        "List corpora to download by name, for source=... target=...", "data.listing:list_corpora", "corpora"),
    "data-report": Command(
        "Show which rows cleaning drops, and why, before training", "data.report:report_data", "data_report"),
    "import": Command(
        "Make a run folder of init=..., Marian (OPUS-MT) or M2M-100 weights", "pretrained.loading:import_run", "train",
        takes_named=True),
    "evaluate": Command(
        "Score a model on the test split: BLEU, chrF, TER", "evaluation.evaluate:evaluate_runs", "evaluate"),
    "translate": Command(
        "Translate text=..., the lines of stdin, or input=FILE", "inference.files:translate_file", "translate"),
    "export": Command(
        "Write a model for other programs: format=...", "export.command:export_run", "export"),
    "serve": Command(
        "Serve a model: an HTTP API and a page", "serve.command:serve_runs", "serve"),
    "board": Command(
        "Show training curves in TensorBoard", "runs.board:open_board", "board"),
    "report": Command(
        "Write a page about a model", "evaluation.report:report_run", "report", takes_defaults=True),
    "shortlist": Command(
        "Learn a model's shortlist, for faster translation", "inference.shortlist_learning:shortlist_run", "shortlist"),
    "prune": Command(
        "Write a smaller run of a trained one", "compression.pruning:prune_run", "prune"),
    "quantize": Command(
        "Write a copy of a model with weights in int8", "compression.quantization:quantize_run", "quantize"),
    "plot-attention": Command(
        "Draw the attention of every layer and head for text=...", "inference.attention_pictures:draw_attentions",
        "plot_attention")}


def main() -> None:
    """Run the command that the shell's first argument names, or print the list of commands."""
    program, *words = sys.argv
    name, *options = words or ["help"]
    if name in ("-h", "--help", "help", "--version"):
        with one_line_errors():
            print(import_module("translator").__version__ if name == "--version" else _help())
        return
    with one_line_errors():
        if name not in COMMANDS:
            raise UserError(unknown("command", name, COMMANDS))
    sys.argv = [f"{program} {name}", *options]
    run(name)


def run(name: str) -> None:
    """Do the work of a command with the options that its file of conf/ and the command line make."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from translator.config.building import from_hydra, named_options
    from translator.config.options import RunConfig

    command = COMMANDS[name]
    module, function = command.work.split(":")
    work = getattr(import_module(f"translator.{module}"), function)
    options = get_type_hints(work)["config"]

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=command.config)
    @one_line_errors()
    def compose_and_work(composed: Any) -> Any:
        job, more = HydraConfig.get(), dict[str, Any]()
        if command.takes_named:
            more["named"] = named_options(job.overrides.task)
        if command.takes_defaults:
            more["defaults"] = from_hydra(RunConfig, hydra.compose("train", ["name=defaults"]))
        done = work(from_hydra(options, composed), **more)
        score = getattr(done, "score", None)  # of a training
        if job.mode is RunMode.MULTIRUN and score is not None:
            from translator.runs.trials import add_trial

            add_trial(done.folder.path, done.metric, score, job.overrides.task)
        return score  # for Hydra's sweepers

    with one_line_errors():
        compose_and_work()


def _help() -> str:
    lines = ["Usage: translator COMMAND [OPTION=VALUE ...]", "", "Commands:"]
    lines += [f"  {name:16}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", f"`translator COMMAND --help` lists a command's options. The files in {CONF} explain them."])
