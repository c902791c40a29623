"""Copy a run with its weights in int8: `python scripts/quantize.py run=runs/x`. Options: conf/quantize.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("quantize")
