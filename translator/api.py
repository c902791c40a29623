"""Train from Python, with the defaults of conf/."""

from __future__ import annotations

from translator.cli import CONF
from translator.runtime.script import hydra_as_user_errors

import json
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from translator.config.building import from_hydra, named_options
from translator.config.options import RunConfig
from translator.runtime.overrides import take_literally
from translator.training import train as training


def train(*overrides: str, **options: Any) -> training.TrainedRun:
    """Train a run, or resume it, as `translator train` does, with these options and else the defaults of conf/.

    train("train.max_minutes=5", data="files", model="tiny"): options as in the shell, or by keyword where they have no dot.
    Raises UserError for a user's mistake, and Interrupted, with everything saved, on SIGINT, SIGTERM or SIGHUP.
    """
    given = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()]
    words = take_literally([*given, *overrides])
    with hydra_as_user_errors(), initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("train", words, return_hydra_config=True)
        HydraConfig.instance().set_config(composed)  # run names are made of it
        config = from_hydra(RunConfig, OmegaConf.masked_copy(composed, [str(name) for name in composed if name != "hydra"]))
    return training.train(config, named=named_options(words))
