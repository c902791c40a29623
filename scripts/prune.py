"""Write a smaller run of a trained one: `python scripts/prune.py run=runs/x heads=0.25`. Options: conf/prune.yaml."""

from translator.cli import run_script

from translator.compression.pruning import prune_run
from translator.config.commands import PruneConfig

if __name__ == "__main__":
    run_script(prune_run, PruneConfig, "prune")
