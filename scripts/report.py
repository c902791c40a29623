"""Write a page about a trained run: `python scripts/report.py run=runs/x against=runs/y`. Options: conf/report.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("report")
