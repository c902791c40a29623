"""Show which rows cleaning drops, and why: `python scripts/data_report.py data=multi30k`. Options: conf/data_report.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("data-report")
