"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from translator.cli import run_script

from translator.config.commands import TranslateConfig
from translator.inference.files import translate_file

if __name__ == "__main__":
    run_script(translate_file, TranslateConfig, "translate")
