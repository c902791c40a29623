"""Score a trained model: `python scripts/evaluate.py run=runs/x against=runs/y`. Options: conf/evaluate.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import io
import sys

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import EvaluateConfig
from translator.evaluation.evaluate import evaluate_runs
from translator.runtime.cpu import tune_cpu


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    tune_cpu()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # sentences of any language, whatever the locale
    evaluate_runs(from_hydra(EvaluateConfig, composed))


if __name__ == "__main__":
    with one_line_errors():
        main()
