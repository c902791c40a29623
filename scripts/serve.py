"""Serve trained models over HTTP: `python scripts/serve.py run=runs/x`. Options: conf/serve.yaml."""

from translator.cli import run_script

from translator.config.commands import ServeConfig
from translator.serve.command import serve_runs

if __name__ == "__main__":
    run_script(serve_runs, ServeConfig, "serve")
