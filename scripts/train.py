"""Train a translation model: `python scripts/train.py data=multi30k model=tiny`. Options: conf/train.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("train")
