"""Text files, plain or .gz: open them, read their lines, recognise what is not text."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from translator.data.file_signatures import HEAD, other_content
from translator.runtime.errors import UserError


def kind_of(path: Path) -> str:
    """Return a file's suffix without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


def require_file(path: Path, named_by: str = "") -> None:
    """Raise UserError unless the path is a regular file. named_by: the options that name it, for the message."""
    if not path.is_file():
        problem = "is a folder. Name a file" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
        raise UserError(f"{path}: {problem}{named_by}")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file and decompress .gz. Raise UserError where it cannot be read, or is binary but not named .parquet."""
    require_file(path)
    try:
        with cast(io.BufferedReader, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            problem = other_content(file.peek(HEAD))
            if problem and kind_of(path) != ".parquet":
                raise UserError(f"{path}: {problem}")
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def read_lines(path: Path, *, keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without a byte order mark. Only line feeds, or CR LF, separate them."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            content = line if keep_ends else line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield content.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}:{number}: not UTF-8 at byte {error.start + 1}. Convert the file to UTF-8") from error
