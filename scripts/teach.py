"""Train a student of a run: `python scripts/teach.py data.teacher=runs/x name=y`. Options: conf/train.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("teach")
