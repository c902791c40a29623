"""Open TensorBoard on the curves of runs: `python scripts/board.py run=[runs/a,runs/b]`. Options: conf/board.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("board")
