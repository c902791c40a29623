"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("translate")
