"""Train a translation model: `python scripts/train.py data=multi30k model=tiny`. Options: conf/train.yaml."""

from translator.runtime.script import one_line_errors

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from translator.config.building import from_hydra, named_options
from translator.config.options import RunConfig
from translator.runtime.signals import Interrupted
from translator.training.train import train


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(composed: DictConfig) -> None:
    with one_line_errors():  # no decorator: launchers of Hydra's pickle this function
        try:
            train(from_hydra(RunConfig, composed), named=named_options(HydraConfig.get().overrides.task))
        except Interrupted as stop:
            sys.exit(stop.exit_code)


if __name__ == "__main__":
    with one_line_errors():
        main()
