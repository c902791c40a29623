"""The table of a sweep's trials, in the folder of its runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from translator.metrics.scores import better
from translator.runtime.atomic_files import read_plain, write_text


def add_trial(run: Path, metric: str, score: float, overrides: Iterable[str]) -> None:
    """Write a trained run into trials.tsv beside it, best first: its score on validation, and the options given."""
    table = run.parent / "trials.tsv"
    text = read_plain(table).decode() if table.is_file() else ""
    trials = {trial["run"]: trial for trial in csv.DictReader(io.StringIO(text), delimiter="\t") if trial.get("run")}
    options = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
    options = {name: value for name, value in options.items() if name not in ("name", "runs")}
    trials[run.name] = {"run": run.name, "metric": metric, "score": f"{score:.4f}"} | options
    ordered = sorted(trials.values(), key=lambda trial: float(trial["score"]), reverse=better(metric, 1, 0))
    columns = dict.fromkeys(name for trial in ordered for name in trial)
    written = io.StringIO()
    rows = csv.DictWriter(written, list(columns), delimiter="\t", lineterminator="\n")
    rows.writeheader()
    rows.writerows(ordered)
    write_text(table, written.getvalue())
