"""Find the runs that options name: by folder, by name, or by id on the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from translator.config.options import RunConfig
from translator.runs.run_folder import OWN
from translator.runtime.errors import UserError, unknown
from translator.runtime.typed import typed

MOST_NAMED = 10  # runs that a message lists


def place_of(runs: str) -> Path:
    """Return the folder of all runs; UserError where the option is empty."""
    if not runs:
        raise UserError("runs: is empty. Name the folder of the runs, as runs=runs.")
    return Path(runs)


def chosen_runs(named: str | tuple[str, ...] | None, runs: str) -> tuple[Path, ...]:
    """Return the run folders of these paths or names; by default the newest in `runs`. UserError for a missing one."""
    if not named:
        return (newest_run(place_of(runs)),)
    return tuple(_existing(find_run(name, runs), runs) for name in ((named,) if isinstance(named, str) else named))


def _existing(run: Path, runs: str) -> Path:
    """Return the folder; UserError, with names of others, where it does not exist."""
    if not run.exists():
        others = sorted(Path(runs).glob("*/config.yaml"), key=lambda file: -file.stat().st_mtime)
        if not others:
            raise UserError(f"run={run}: no such folder, and no runs in {runs} yet. `{typed('train')}` makes one.")
        names = [file.parent.name for file in others[:MOST_NAMED]]
        raise UserError(unknown(f"folder, and no such run in {runs}", str(run), names, "run="))
    return run


def find_run(named: str, runs: str = "runs") -> Path:
    """Return the folder `named`; or else the run of this name in `runs`, or a copy of USER/NAME on the hub.

    UserError if the hub has no such run, or cannot be reached and the run was never loaded from it.
    """
    path, inside = Path(named), place_of(runs) / named
    if path.exists() or inside.is_dir():
        return path if path.exists() else inside
    is_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", named, re.ASCII) and not path.parent.exists()
    return _from_hub(named) if is_id else path


def _from_hub(repository: str) -> Path:
    """Return the folder where the hub's client keeps a run; only the files of run folders are fetched."""
    try:
        return Path(snapshot_download(repository, allow_patterns=list(OWN)))
    except LocalEntryNotFoundError as error:
        raise UserError(f"{repository}: no such run here, and the hub cannot be reached. Name the folder of a run.") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(f"{repository}: no such run here or on the hub: {str(error).strip().splitlines()[0]}") from error


def with_found_runs(config: RunConfig) -> RunConfig:
    """Return the options of a training with the folders of the runs that they name."""
    def found(named: Any) -> Any:
        return str(find_run(named, config.runs)) if isinstance(named, str) else named and tuple(map(found, named))

    data = dataclasses.replace(config.data, teacher=found(config.data.teacher), reverse=found(config.data.reverse))
    train = dataclasses.replace(config.train, teacher=found(config.train.teacher))
    return dataclasses.replace(config, init=found(config.init), data=data, train=train)


def newest_run(runs: Path) -> Path:
    """Return the run folder whose weights were written last."""
    weights = [file for file in runs.glob("*/model.safetensors") if file.with_name("config.yaml").is_file()]  # no exports
    if not weights:
        raise UserError(f"{runs}: no trained run here yet. `{typed('train')}` makes one; run=FOLDER names another.")
    return max(weights, key=lambda file: file.stat().st_mtime).parent
