"""Learn a run's shortlist from its training data: `python scripts/shortlist.py run=runs/x`. Options: conf/shortlist.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import ShortlistConfig
from translator.evaluation.held_out import data_of
from translator.inference.shortlist_learning import write_shortlist
from translator.runs.run_folder import RunFolder, chosen_runs


@hydra.main(version_base="1.3", config_path="../conf", config_name="shortlist")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(ShortlistConfig, composed)
    [run] = chosen_runs(config.run, config.runs)
    folder = RunFolder(run)
    write_shortlist(folder, data_of(folder))
    print(f"written to {folder.shortlist_file}; use it with search.shortlist=20")


if __name__ == "__main__":
    with one_line_errors():
        main()
