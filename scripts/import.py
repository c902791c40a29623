"""Make a run folder of a trained model: `python scripts/import.py init=x/opus-mt-en-de name=opus`. Options: conf/train.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("import")
