"""The frame of every script: Hydra composes the options of conf/, and one function of the package does the work."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from translator.config.building import Config, from_hydra, named_options

CONF = Path(__file__).resolve().parent.parent / "conf"


def run_script(work: Callable[[Config], object], options: type[Config], name: str) -> None:
    """Do the work of a command with the options that conf/`name`.yaml and the command line make."""
    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)
    @one_line_errors()
    def main(composed: DictConfig) -> None:
        work(from_hydra(options, composed))

    with one_line_errors():
        main()


def options_given() -> list[str]:
    """Return the names of the options that the command line sets, while a command is at work."""
    return named_options(HydraConfig.get().overrides.task)
