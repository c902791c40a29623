"""Write a run for other programs: `python scripts/export.py format=ctranslate2 run=runs/x`. Options: conf/export.yaml."""

from translator.cli import run_script

from translator.config.commands import ExportConfig
from translator.export.command import export_run

if __name__ == "__main__":
    run_script(export_run, ExportConfig, "export")
