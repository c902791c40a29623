"""Learn a run's shortlist from its training data: `python scripts/shortlist.py run=runs/x`. Options: conf/shortlist.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("shortlist")
