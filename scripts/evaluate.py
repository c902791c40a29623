"""Score a trained model: `python scripts/evaluate.py run=runs/x against=runs/y`. Options: conf/evaluate.yaml."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from translator.building import from_hydra
from translator.checkpoint import RunFolder, chosen_runs
from translator.commands import EvaluateConfig
from translator.device import tune_cpu
from translator.errors import UserError, one_line_errors
from translator.evaluate import Evaluation, compare, describe, describe_comparison, evaluate
from translator.held_out import held_out, language_of, require_comparable, sources_for
from translator.text_files import read_lines
from translator.translate import Translator


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(EvaluateConfig, composed)
    tune_cpu()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # sentences of any language, whatever the locale
    runs = list(chosen_runs(config.run, config.runs))
    if config.against:
        runs.insert(0, Path(config.against))  # the baseline comes first
    require_comparable(runs, config.direction)
    name, sources, references = test_set(config, runs[-1])
    language = language_of(RunFolder(runs[-1]), config.direction)
    systems: list[tuple[str, Evaluation]] = []
    for run in runs:
        translator = Translator(run, device=config.device, precision=config.precision)
        evaluation = evaluate(translator, sources_for(run, sources, config.direction), references, config.search, language)
        # The rival's lies with this run's too: in its own folder stand its scores on its own data.
        folder = runs[-1] / (f"evaluation-{name}" if run is runs[-1] else f"evaluation-{name}-of-{run.resolve().name}")
        print(f"{run} on {name}: {describe(evaluation, worst=config.worst)}")
        evaluation.save(folder)
        print(f"written to {folder}")
        systems.append((str(run), evaluation))
    if config.against:
        print(describe_comparison(compare(systems)))


def test_set(config: EvaluateConfig, run: Path) -> tuple[str, list[str], list[str]]:
    """Its name, sources and references: the files named, or a split of the run's own data."""
    if config.source_file is None or config.reference_file is None:
        name = "-".join([config.split, *(config.direction or ())])
        return name, *held_out(RunFolder(run), config.split, config.direction)
    sources, references = (list(read_lines(Path(file))) for file in (config.source_file, config.reference_file))
    if len(sources) != len(references):
        raise UserError(
            f"{config.source_file} has {len(sources):,} lines, {config.reference_file} {len(references):,}: they must be pairs")
    return Path(config.source_file).name.removesuffix(".gz"), sources, references


if __name__ == "__main__":
    with one_line_errors():
        main()
