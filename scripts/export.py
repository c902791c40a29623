"""Write a run for other programs: `python scripts/export.py format=ctranslate2 run=runs/x`. Options: conf/export.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("export")
