"""Measure speed: `python scripts/benchmark.py data=multi30k model=small`. Overrides are scripts/train.py's, but for init.

With --run RUN, decoding with that run is measured instead, as device= and search. options say; with --beside as well, in turn
with other programs that run its weights. With --compare BEFORE AFTER, two reports are set side by side.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from translator.bench.benchmark import (
    BEAM_SIZES,
    compare,
    decoding_table,
    describe_machine,
    load_report,
    measure_decoding,
    measure_training,
    require_fresh,
)
from translator.bench.side_by_side import SETTINGS, Figures, measure_side_by_side, side_by_side_table
from translator.config.building import from_hydra
from translator.config.options import RunConfig, SearchConfig
from translator.data.preparation import load_split, prepare
from translator.data.tatoeba import fetch_default
from translator.evaluation.held_out import data_of
from translator.inference.workers import Job
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runtime.atomic_files import require_writable, writing
from translator.runtime.console import log, require_stdout
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision, resolve_device
from translator.runtime.errors import UserError
from translator.training.trainer import Trainer, new_model

PRECISIONS = [Precision.FP32, Precision.BF16, Precision.INT8]
OF_TRAINING = ("updates", "trace")
OF_DECODING = ("decode_in", "beside", "workers", "sentences")
CONF = Path(__file__).resolve().parent.parent / "conf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="options as for scripts/train.py; with --run device= and search. alone")
    parser.add_argument("--updates", type=positive, default=20, help="updates in a stretch that is timed (20)")
    parser.add_argument("--repeats", type=positive, default=5, help="stretches, whose medians are given (5)")
    parser.add_argument("--run", type=Path, help="a trained run with which to measure decoding on its test split instead")
    parser.add_argument(
        "--decode-in", action="append", type=Precision, choices=PRECISIONS,
        help="precision of decoding; may be given again (fp32, bf16 and, on a CPU, int8)")
    parser.add_argument(
        "--beside", action="append", choices=sorted(SETTINGS["cpu"]), default=[],
        help="another program to decode with the run's weights in turn; may be given again")
    parser.add_argument("--workers", type=positive, default=1, help="processes that decode a file (1)")
    parser.add_argument("--sentences", type=positive, default=200, help="sentences to decode in each setting (200)")
    parser.add_argument("--trace", type=Path, help="where to write a profile for chrome://tracing")
    parser.add_argument("--output", type=Path, default=Path("benchmark.json"), help="the report's file (benchmark.json)")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="print the ratios of two reports")
    options = parser.parse_intermixed_args()
    require_wanted(parser, options)
    if options.output.is_dir():
        raise UserError(f"--output: {options.output} is a folder; name a file")
    for target in filter(None, (options.output, options.trace)):
        require_not_of_a_run(target)
        require_writable(target.parent)
    if options.compare:
        require_stdout("the ratios", "Redirect it to a file: > FILE.")
        before, after = map(load_report, options.compare)
        print("\n".join(compare(before, after)))
        return
    tune_cpu(training=options.run is None)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = from_hydra(RunConfig, compose("train", [*options.overrides, "name=benchmark"]))
    require_fresh(config)
    device = resolve_device(config.device)
    precision = Precision.resolve(config.precision, device)
    report: dict[str, object] = {"machine": describe_machine(device, precision)}
    if options.run:
        require_of_decoding(options.overrides)
        report |= {"workers": options.workers, "search": dataclasses.asdict(config.search)}
    if options.beside:
        report["side_by_side"] = decode_side_by_side(device, config.search, options)
    elif options.run:
        report["decoding"] = decode(device, config.search, options)
    else:
        report["training"] = train(config, device, precision, options)
    text = json.dumps(report, indent=2)
    with writing(options.output):
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n", encoding="utf-8")
    print(text)


def require_wanted(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """UserError for what changes nothing of what is to be measured or compared."""
    idle: Sequence[str]
    if options.compare:
        if options.overrides:
            raise UserError(f"{options.overrides[0]}: is for measuring; leave it out with --compare")
        idle = [name for name in vars(options) if name not in ("compare", "overrides")]
        what = "measuring; leave it out with --compare"
    elif options.run:
        idle, what = OF_TRAINING, "training; without --run"
    else:
        idle, what = OF_DECODING, "decoding; give --run RUN"
    for name in idle:
        if getattr(options, name) != parser.get_default(name):
            raise UserError(f"--{name.replace('_', '-')}: is for {what}")


def train(config: RunConfig, device: torch.device, precision: Precision, options: argparse.Namespace) -> dict[str, object]:
    """The figures of training a fresh model as `config` says."""
    fetch_default(config.data.path)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    model = new_model(config, corpus, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Trainer(config, RunFolder(Path(folder)), corpus, model, list, precision=precision)) as trainer,
    ):
        log(f"training {options.repeats} x {options.updates} updates")
        return measure_training(trainer, updates=options.updates, repeats=options.repeats, trace=options.trace)


def require_of_decoding(overrides: Sequence[str]) -> None:
    """UserError for options that change nothing of how a trained run decodes."""
    for override in overrides:
        if override.split("=")[0].split(".")[0] not in {"device", "search"}:
            raise UserError(f"{override}: is for training; with --run give device= and search. options alone")


def decode(device: torch.device, search: SearchConfig, options: argparse.Namespace) -> dict[str, object]:
    """The figures of translating the first test sentences of a trained run, by precision."""
    measured = dataclasses.replace(search.plain(max(BEAM_SIZES)), shortlist=search.shortlist)
    search.require_like(measured, "what is measured is plain search, greedy and with beam 5")
    data = data_of(RunFolder(options.run))
    precisions = options.decode_in or precisions_on(device)
    jobs = {name: Job((str(options.run),), device.type, name, search, details=False) for name in precisions}
    jobs[precisions[0]].load()  # a run that cannot be read is told before its data are
    sources = list(load_split(data, "test")["source"])[: options.sentences]
    log(f"decoding {len(sources)} sentences in each setting, {options.repeats} times")
    by_precision: dict[str, object] = {}
    for name, job in jobs.items():
        by_precision[name] = figures = measure_decoding(job, sources, repeats=options.repeats, workers=options.workers)
        for line in decoding_table(name, figures):
            log(line)
    return by_precision


def decode_side_by_side(device: torch.device, search: SearchConfig, options: argparse.Namespace) -> Figures:
    """The figures of translating the first test sentences of a trained run here and by other programs."""
    if device.type not in SETTINGS:
        raise UserError(f"--beside: the others do not run on {device.type}; give device=cpu")
    test = load_split(data_of(RunFolder(options.run)), "test")[: options.sentences]
    log(f"decoding {len(test['source'])} sentences in each system, {options.repeats} times")
    figures = measure_side_by_side(
        options.run, list(test["source"]), list(test["target"]), search, device=device.type,
        formats=sorted(set(options.beside)), precisions=options.decode_in or precisions_on(device),
        repeats=options.repeats, workers=options.workers)
    for line in side_by_side_table(figures):
        log(line)
    return figures


def precisions_on(device: torch.device) -> list[Precision]:
    """All in which models decode there."""
    return [name for name in PRECISIONS if name != "int8" or device.type == "cpu"]


def positive(text: str) -> int:
    """The whole number above 0 that an option gives."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text}")
    return int(text)


if __name__ == "__main__":
    with one_line_errors():
        main()
