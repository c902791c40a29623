"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import sys

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import TranslateConfig
from translator.inference.files import translate_file
from translator.runtime.errors import USER_ERROR_EXIT_CODE


@hydra.main(version_base="1.3", config_path="../conf", config_name="translate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    if translate_file(from_hydra(TranslateConfig, composed)):
        sys.exit(USER_ERROR_EXIT_CODE)


if __name__ == "__main__":
    with one_line_errors():
        main()
