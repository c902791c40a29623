"""Text files: their lines, and what in them a reader of tables would trip over (floor 1)."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from translator.console import say
from translator.errors import UserError
from translator.files import GZIP


def version_of(file: Path) -> tuple[str, int, int]:
    """What tells a file from others and from its own earlier self."""
    return str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns


def require_file(path: Path, named: str = "") -> None:
    """UserError where there is no file; `named`: by what."""
    if not path.is_file():
        what = "is a folder; name a file" if path.is_dir() else "is no ordinary file" if path.exists() else "no such file"
        raise UserError(f"{path}: {what}{named}")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or .gz, as they are read; only line feeds separate them.

    A byte order mark before the first is no part of it.
    """
    require_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    if number == 1 and line.startswith(GZIP):
                        raise UserError(f"{path}: is packed by gzip; let its name end in .gz") from error
                    place = f"{path}:{number}: not UTF-8 at byte {error.start + 1}"
                    raise UserError(f"{place}; convert the file to UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def kind_of(path: Path) -> str:
    """A file's suffix, packed or not."""
    return Path(path.name.removesuffix(".gz")).suffix


@cache
def refuse_lone_returns(path: Path, version: tuple[str, int, int], *, quotes: bool) -> None:
    """UserError for a carriage return within a line, where pandas would begin another row. Once in each `version` of a file.

    `quotes`: unless it stands between quotation marks. A file without line feeds has carriage returns in their place.
    """
    lone, quoted = 0, False
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split('"') if quotes else [line]
        if not lone and any("\r" in part for part in parts[quoted::2]):
            lone = number
        if lone and number > 1:
            raise UserError(f"{path}:{lone}: a carriage return within the line, which would make two rows of it; take it out")
        quoted ^= len(parts) % 2 == 0


@cache
def refuse_null_rows(path: Path, version: tuple[str, int, int]) -> None:
    """UserError for a row that is null: PyArrow's reader of JSON dies of one, and the process with it.

    Looked for once in each `version` of a file, however often it is streamed.
    """
    lines = read_lines(path)
    first = next(lines, "")
    if first.startswith("["):
        try:
            nulls = (row is None for row in json.loads("\n".join([first, *lines])))
        except (ValueError, RecursionError):
            return  # the reader says what is wrong
    else:
        nulls = (line.lstrip().startswith("null") for line in itertools.chain([first], lines))
    for number, null in enumerate(nulls, start=1):
        if null:
            raise UserError(f"{path}: row {number:,} is null instead of an object; take it out")


def first_flaw(path: Path) -> str | None:
    """Where a text file stops being UTF-8 or, in JSON Lines, JSON: looked for when it could not be loaded."""
    kind = kind_of(path)
    if kind == ".parquet":
        return None
    number = 0
    try:
        for line in read_lines(path):
            number += 1
            if kind == ".jsonl":
                json.loads(line or "null")
    except UserError as error:
        return str(error)
    except json.JSONDecodeError as error:
        return f"{path}:{number}: not JSON at column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists
        return f"{path}:{number}: no JSON that can be read: {error}"
    return None


def warn_of_line_breaks(table: pa.Table, where: str) -> None:
    """Where a cell of CSV has any: of a quotation mark that nobody closed pandas makes one of all rows up to the next."""
    texts = (cells for cells in table.columns if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type))
    if any(pc.any(pc.match_substring_regex(cells, r"[\r\n]")).as_py() for cells in texts):
        _say_once(f"warning: {where}: some cells hold line breaks; where they should not, a quotation mark is not closed")


@cache
def _say_once(text: str) -> None:
    """A stream comes by again and again."""
    say(text)
