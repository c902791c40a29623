"""Score a trained model: `python scripts/evaluate.py run=runs/x against=runs/y`. Options: conf/evaluate.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("evaluate")
