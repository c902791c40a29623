"""Train a translation model: `python scripts/train.py data=multi30k model=tiny`. Options: conf/train.yaml."""

from translator.cli import options_given, run_script

import sys

from translator.config.options import RunConfig
from translator.runtime.signals import Interrupted
from translator.training.train import train


def main(config: RunConfig) -> None:
    try:
        train(config, named=options_given())
    except Interrupted as stop:
        sys.exit(stop.exit_code)


if __name__ == "__main__":
    run_script(main, RunConfig, "train")
