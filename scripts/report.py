"""Write a page about a trained run: `python scripts/report.py run=runs/x against=runs/y`. Options: conf/report.yaml."""

from translator.cli import run_script

from translator.config.commands import ReportConfig
from translator.evaluation.report import report_run

if __name__ == "__main__":
    run_script(report_run, ReportConfig, "report")
