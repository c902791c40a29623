"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, cast

import hydra
from omegaconf import DictConfig

from translator.checkpoint import newest_run
from translator.config import TranslateConfig, from_hydra
from translator.device import tune_cpu
from translator.errors import USER_ERROR_EXIT_CODE, UserError, one_line_errors
from translator.translate import Translation, Translator

# Bytes read at once: some thousand lines of a file, which make full batches, and few enough to answer soon.
READ_BYTES = 1 << 16
INTERRUPTED_EXIT_CODE = 130


@hydra.main(version_base="1.3", config_path="../conf", config_name="translate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(TranslateConfig, composed)
    tune_cpu()
    try:
        refusals = translate_lines(config)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    if refusals:
        sys.exit(USER_ERROR_EXIT_CODE)


def translate_lines(config: TranslateConfig) -> int:
    """Answer every line with a line; how many were refused."""
    refusals = number = 0
    with open_input(config.input) as file:
        translator = Translator(config.run or newest_run(Path(config.runs)), device=config.device, precision=config.precision)
        with open_output(config.output) as output:
            for lines in read_lines(file, config.input):
                for translation in translator.translate(lines, config.search):
                    number += 1
                    if translation.refused:
                        refusals += 1
                        print(f"line {number}: {translation.refused}", file=sys.stderr)
                    output.write(as_line(translation))
                output.flush()
    return refusals


def as_line(translation: Translation) -> bytes:
    """The n best translations, tab-separated, as one line."""
    return ("\t".join(text.replace("\t", " ") for text in translation.texts) + "\n").encode()


def read_lines(file: io.BufferedReader, name: str | None) -> Iterator[list[bytes]]:
    """The lines that each read brings: of a file many, of a terminal or a slow pipe those just written. Nobody waits.

    As bytes: a line that is not UTF-8 is one line's trouble, not the file's. Only line feeds separate lines.
    """
    rest: list[bytes] = []  # the pieces of a line whose end has not come yet
    try:
        while data := file.read1(READ_BYTES):
            first, *others = data.split(b"\n")
            rest.append(first)
            if others:
                yield [line.removesuffix(b"\r") for line in (b"".join(rest), *others[:-1])]
                rest = [others[-1]]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"input={name}: damaged .gz file: {error}") from error
    if last := b"".join(rest):
        yield [last.removesuffix(b"\r")]


def open_input(name: str | None) -> AbstractContextManager[io.BufferedReader]:
    if name is None:
        return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))
    if Path(name).is_dir() or not Path(name).exists():
        raise UserError(f"input={name}: no such file")
    return cast(io.BufferedReader, gzip.open(name)) if name.endswith(".gz") else Path(name).open("rb")


@contextmanager
def open_output(name: str | None) -> Iterator[IO[bytes]]:
    """Where translations go: stdout, or a file that takes its name once it is whole (until then, NAME.partial)."""
    if name is None:
        yield sys.stdout.buffer
        return
    path = Path(name)
    if path.is_dir():
        raise UserError(f"output={name}: is a folder; name a file")
    partial = path if path.exists() and not path.is_file() else Path(name + ".partial")  # a device or a pipe stays itself
    with partial.open("wb") as file:
        yield file
    if partial != path:
        partial.rename(path)


if __name__ == "__main__":
    with one_line_errors():
        main()
