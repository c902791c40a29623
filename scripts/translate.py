"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

import hydra
from omegaconf import DictConfig

from translator.checkpoint import newest_run
from translator.config import TranslateConfig, from_hydra
from translator.errors import USER_ERROR_EXIT_CODE, UserError, run_command
from translator.translate import Translation, Translator


@hydra.main(version_base="1.3", config_path="../conf", config_name="translate")
def main(composed: DictConfig) -> None:
    config = from_hydra(TranslateConfig, composed)
    translator = Translator(
        config.run or newest_run(Path(config.runs)), device=config.device, precision=config.precision)
    refusals = 0
    try:
        with open_input(config.input) as lines, open_output(config.output) as output:
            source = (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)
            for number, translation in enumerate(translator.stream(source, config.search), start=1):
                if translation.refused:
                    refusals += 1
                    print(f"line {number}: {translation.refused}", file=sys.stderr)
                output.write(as_line(translation))
                output.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    if refusals:
        sys.exit(USER_ERROR_EXIT_CODE)


def as_line(translation: Translation) -> bytes:
    """The n best translations, tab-separated, as one line."""
    return ("\t".join(text.replace("\t", " ") for text in translation.texts) + "\n").encode()


def open_input(name: str | None) -> AbstractContextManager[IO[bytes]]:
    """The lines to translate, as bytes: a line that is not UTF-8 is one line's trouble, not the file's."""
    if name is None:
        return nullcontext(sys.stdin.buffer)
    if not Path(name).is_file():
        raise UserError(f"input={name}: no such file")
    return gzip.open(name) if name.endswith(".gz") else Path(name).open("rb")  # type: ignore[return-value]


@contextmanager
def open_output(name: str | None) -> Iterator[IO[bytes]]:
    """Where translations go: stdout, or a file that takes its name once it is whole."""
    if name is None:
        yield sys.stdout.buffer
        return
    partial = Path(name + ".partial")
    with partial.open("wb") as file:
        yield file
    partial.rename(name)


if __name__ == "__main__":
    run_command(main)
