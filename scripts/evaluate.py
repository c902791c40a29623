"""Score a trained model: `python scripts/evaluate.py run=runs/x against=runs/y`. Options: conf/evaluate.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import EvaluateConfig
from translator.data.sources import SPLITS
from translator.data.text_files import read_lines
from translator.evaluation.evaluate import Evaluation, compare, describe, describe_comparison, evaluate
from translator.evaluation.held_out import held_out, language_of, require_comparable, sources_for, warn_of_learned
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder, chosen_runs
from translator.runtime.atomic_files import require_no_link, require_writable
from translator.runtime.cpu import tune_cpu
from translator.runtime.errors import UserError


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(EvaluateConfig, composed)
    tune_cpu()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # sentences of any language, whatever the locale
    runs = chosen_runs(config.run, config.runs)  # several translate together
    teams = [chosen_runs(config.against, config.runs), runs] if config.against else [runs]  # the baseline comes first
    everybody = [run for team in teams for run in team]
    require_comparable(everybody, config.direction)
    name, sources, references = test_set(config, runs[0])
    if config.source_file is None:
        warn_of_learned(everybody, runs[0], config.split, sources, references)
    language = language_of(RunFolder(runs[0]), config.direction) or config.search.language or ""
    # All before the first sentence, so that no mistake comes to light after minutes.
    folders = [require_no_link(runs[0] / folder_name(name, team, own=team is runs)) for team in teams]
    require_writable(runs[0])
    translators = [Translator(*team, device=config.device, precision=config.precision) for team in teams]
    systems: list[tuple[str, Evaluation]] = []
    for team, translator, folder in zip(teams, translators, folders, strict=True):
        evaluation = evaluate(translator, sources_for(team[0], sources, config.direction), references, config.search, language)
        label = " + ".join(map(str, team))
        if config.source_file is not None:  # files may share a name, a run's splits do not
            folder = evaluation.beside_others(folder)
        try:
            evaluation.save(folder)
        finally:  # whoever reads what is printed may have left, and a disk may be full
            print(f"{label} on {name}: {describe(evaluation, worst=config.worst)}")
        print(f"written to {folder}")
        systems.append((label, evaluation))
    if config.against:
        print(describe_comparison(compare(systems)))


def folder_name(name: str, team: Sequence[Path], *, own: bool) -> str:
    """Of an evaluation in the first run's folder. A rival's lies there too: in its own stand its scores on its own data."""
    others = "-".join(run.resolve().name for run in (team[1:] if own else team))
    return f"evaluation-{name}" + (f"-{'with' if own else 'of'}-{others}" if others else "")


def test_set(config: EvaluateConfig, run: Path) -> tuple[str, list[str], list[str]]:
    """Its name, sources and references: the files named, or a split of the run's own data."""
    if config.source_file is None or config.reference_file is None:
        name = "-".join([config.split, *(config.direction or ())])
        return name, *held_out(RunFolder(run), config.split, config.direction)
    sources, references = (list(read_lines(Path(file))) for file in (config.source_file, config.reference_file))
    if len(sources) != len(references):
        raise UserError(
            f"{config.source_file} has {len(sources):,} lines, {config.reference_file} {len(references):,}: they must be pairs")
    name = Path(config.source_file).name.removesuffix(".gz")
    return (f"file-{name}" if name.split("-")[0] in SPLITS else name), sources, references


if __name__ == "__main__":
    with one_line_errors():
        main()
