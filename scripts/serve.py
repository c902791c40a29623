"""Serve trained models over HTTP: `python scripts/serve.py run=runs/x`. Options: conf/serve.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("serve")
