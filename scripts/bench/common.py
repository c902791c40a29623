"""Options, machine and fresh processes: what all measurements share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir

from translator.config.building import from_hydra
from translator.config.options import RunConfig
from translator.runtime.device import Precision, resolve_device
from translator.runtime.environment import environment
from translator.runtime.errors import UserError

CONF = Path(__file__).resolve().parents[2] / "conf"
Result = TypeVar("Result")


def in_fresh_process(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Return what a function returns in a process of its own, so that its peak memory is that of nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()


def options_of_training(overrides: Sequence[str]) -> RunConfig:
    """Compose conf/train.yaml; UserError for init=, since only fresh models are measured."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = from_hydra(RunConfig, compose("train", [*overrides, "name=benchmark"]))
    if config.init is not None:
        raise UserError("init: only fresh models are measured. Remove it.")
    return config


def machine(config: RunConfig) -> dict[str, str]:
    """Describe what figures were measured on."""
    device = resolve_device(config.device)
    precision = Precision.resolve(config.precision, device)
    return {"device": device.type, "precision": precision} | environment(device)
