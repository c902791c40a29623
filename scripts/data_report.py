"""Show which rows cleaning drops, and why: `python scripts/data_report.py data=multi30k`. Options: conf/data_report.yaml."""

from translator.cli import run_script

from translator.config.commands import DataReportConfig
from translator.data.report import describe_data
from translator.runtime.console import require_stdout


def report(config: DataReportConfig) -> None:
    require_stdout("the report", "Open it, or redirect it to a file.")
    print(describe_data(config.data))


if __name__ == "__main__":
    run_script(report, DataReportConfig, "data_report")
