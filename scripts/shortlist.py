"""Learn a run's shortlist from its training data: `python scripts/shortlist.py run=runs/x`. Options: conf/shortlist.yaml."""

from translator.cli import run_script

from translator.config.commands import ShortlistConfig
from translator.evaluation.held_out import data_of
from translator.inference.shortlist_learning import write_shortlist
from translator.runs.run_folder import RunFolder, chosen_runs


def learn(config: ShortlistConfig) -> None:
    [run] = chosen_runs(config.run, config.runs)
    folder = RunFolder(run)
    write_shortlist(folder, data_of(folder))
    print(f"written to {folder.shortlist_file}; use it with search.shortlist=20")


if __name__ == "__main__":
    run_script(learn, ShortlistConfig, "shortlist")
