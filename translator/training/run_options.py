"""Resolve the options of a run when it starts, and refuse changes of what shaped a run that is resumed."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from translator.config.building import by_dotted_name
from translator.config.options import RunConfig
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision
from translator.runtime.distributed import world_size
from translator.runtime.errors import UserError

# A resumed run may change these; every other option shaped what it has learned.
MAY_CHANGE = {
    "name", "runs", "device", "search", "data.cache", "data.workers", "train.max_epochs", "train.max_updates",
    "train.max_minutes", "train.patience", "train.log_every", "train.compile", "train.cuda_graphs", "train.parallel",
    "train.timeout_minutes"}


def with_train(config: RunConfig, **changes: Any) -> RunConfig:
    """Return the options with some of config.train replaced."""
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def resolve_options(config: RunConfig, folder: RunFolder, device: torch.device) -> RunConfig:
    """Return the options with `auto` and null as the run in this folder has them, or else as this machine resolves them.

    UserError where the run was begun with other options.
    """
    if not folder.has_begun():
        return _resolved(config, device)
    saved = _resolved(folder.load_config(), device)  # an imported run has some unresolved
    if config.precision == "auto":
        config = dataclasses.replace(config, precision=saved.precision)
    unset = {"batch_tokens": "auto", "accumulation": None, "validate_every": None}
    config = with_train(config, **{
        name: getattr(saved.train, name) for name, value in unset.items() if getattr(config.train, name) == value})
    if saved.train.validate_every is None:  # imported, and not trained yet
        saved = with_train(saved, validate_every=config.train.validate_every)
    before, now = by_dotted_name(saved), by_dotted_name(config)
    for option in now:
        if before[option] != now[option] and not {option, option.split(".")[0]} & MAY_CHANGE:
            raise UserError(
                f"{option}={now[option]}: the run in {folder.path} was started with {before[option]}. "
                "Give the old value to resume it, or choose another name=.")
    return config


def _resolved(config: RunConfig, device: torch.device) -> RunConfig:
    precision = Precision.resolve(config.precision, device)
    return with_train(
        dataclasses.replace(config, precision=precision.value),  # type: ignore[arg-type]  # a name of the Literal
        accumulation=config.train.accumulation or world_size())
