"""Find the runs that options name."""

from __future__ import annotations

from pathlib import Path

from translator.runtime.errors import UserError
from translator.runtime.typed import typed


def place_of(runs: str) -> Path:
    """Return the folder of all runs; UserError where the option is empty."""
    if not runs:
        raise UserError("runs: is empty. Name the folder of the runs, as runs=runs.")
    return Path(runs)


def chosen_runs(named: str | tuple[str, ...] | None, runs: str) -> tuple[Path, ...]:
    """Return the named run folders; by default the newest in `runs`."""
    if not named:
        return (newest_run(place_of(runs)),)
    return tuple(map(Path, (named,) if isinstance(named, str) else named))


def newest_run(runs: Path) -> Path:
    """Return the run folder whose weights were written last."""
    weights = [file for file in runs.glob("*/model.safetensors") if file.with_name("config.yaml").is_file()]  # no exports
    if not weights:
        raise UserError(f"{runs}: no trained run here yet. `{typed('train')}` makes one; run=FOLDER names another.")
    return max(weights, key=lambda file: file.stat().st_mtime).parent
