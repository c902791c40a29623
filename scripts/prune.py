"""Write a smaller run of a trained one: `python scripts/prune.py run=runs/x heads=0.25`. Options: conf/prune.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("prune")
