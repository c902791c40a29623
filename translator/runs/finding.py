"""Find the runs that options name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from translator.config.options import RunConfig
from translator.runtime.errors import UserError
from translator.runtime.typed import typed


def place_of(runs: str) -> Path:
    """Return the folder of all runs; UserError where the option is empty."""
    if not runs:
        raise UserError("runs: is empty. Name the folder of the runs, as runs=runs.")
    return Path(runs)


def chosen_runs(named: str | tuple[str, ...] | None, runs: str) -> tuple[Path, ...]:
    """Return the run folders of these paths or names; by default the newest in `runs`."""
    if not named:
        return (newest_run(place_of(runs)),)
    return tuple(Path(find_run(name, runs)) for name in ((named,) if isinstance(named, str) else named))


def find_run(named: str, runs: str) -> str:
    """Return the folder `named`, or, if there is none, the run of this name in `runs`."""
    inside = place_of(runs) / named
    return str(inside) if inside.is_dir() and not Path(named).exists() else named


def with_found_runs(config: RunConfig) -> RunConfig:
    """Return the options of a training with the folders of the runs that they name."""
    def found(named: Any) -> Any:
        return find_run(named, config.runs) if isinstance(named, str) else named and tuple(map(found, named))

    data = dataclasses.replace(config.data, teacher=found(config.data.teacher), reverse=found(config.data.reverse))
    train = dataclasses.replace(config.train, teacher=found(config.train.teacher))
    return dataclasses.replace(config, init=found(config.init), data=data, train=train)


def newest_run(runs: Path) -> Path:
    """Return the run folder whose weights were written last."""
    weights = [file for file in runs.glob("*/model.safetensors") if file.with_name("config.yaml").is_file()]  # no exports
    if not weights:
        raise UserError(f"{runs}: no trained run here yet. `{typed('train')}` makes one; run=FOLDER names another.")
    return max(weights, key=lambda file: file.stat().st_mtime).parent
