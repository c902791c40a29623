"""Write a page about a trained run: `python scripts/report.py run=runs/x against=runs/y`. Options: conf/report.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

from pathlib import Path

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import ReportConfig
from translator.evaluation.report import write_report
from translator.runs.run_folder import chosen_runs
from translator.runtime.atomic_files import require_no_link
from translator.runtime.cpu import tune_cpu


@hydra.main(version_base="1.3", config_path="../conf", config_name="report")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(ReportConfig, composed)
    tune_cpu()
    [run] = chosen_runs(config.run, config.runs)
    print(write_report(run, Path(config.output) if config.output else require_no_link(run / "report"), config))


if __name__ == "__main__":
    with one_line_errors():
        main()
