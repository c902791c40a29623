"""Train a student of a run: `python scripts/teach.py data.teacher=runs/x name=y`. Options: conf/train.yaml."""

from translator.cli import options_given, run_script

import sys

from translator.config.options import RunConfig
from translator.runtime.signals import Interrupted
from translator.training.student import as_student
from translator.training.train import train


def main(config: RunConfig) -> None:
    named = options_given()
    try:
        train(as_student(config, named), named=named)
    except Interrupted as stop:
        sys.exit(stop.exit_code)


if __name__ == "__main__":
    run_script(main, RunConfig, "train")
