"""Write a page about a trained run: `python scripts/report.py run=runs/x against=runs/y`. Options: conf/report.yaml."""

from __future__ import annotations

from translator.script import one_line_errors

from pathlib import Path

import hydra
from omegaconf import DictConfig

from translator.building import from_hydra
from translator.commands import ReportConfig
from translator.cpu import tune_cpu
from translator.files import require_no_link
from translator.report import write_report
from translator.run_folder import chosen_runs


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
