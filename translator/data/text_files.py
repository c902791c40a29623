"""Text files: their lines, and what in them a reader of tables would misread."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from translator.data.file_signatures import HEAD, other_content
from translator.runtime.console import log
from translator.runtime.errors import UserError

# A file's path, size and times of change.
Version = tuple[str, int, int, int]

LONE_RETURN = "a carriage return within the line, which would make two rows of it. Remove it"
csv.field_size_limit(sys.maxsize)  # a cell may hold a document


def version_of(file: Path) -> Version:
    """Return what changes with a file, as far as it can be known without reading it."""
    about = file.stat()
    return str(file.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns


def require_file(path: Path, named: str = "") -> None:
    """Raise UserError where there is no file; `named`: by what."""
    if not path.is_file():
        what = "is a folder; name a file" if path.is_dir() else "is no ordinary file" if path.exists() else "no such file"
        raise UserError(f"{path}: {what}{named}")


def refuse_other_content(path: Path) -> None:
    """Raise UserError for a file that is not what its name says."""
    with _opened(path) as file:
        head = file.peek(HEAD)
    if kind_of(path) != ".parquet":
        return
    if not head.startswith(b"PAR1"):
        words = other_content(head) or "holds text; let its name end in .tsv, .csv or .jsonl"
        raise UserError(f"{path}: is no Parquet file: {words}")
    repeated = [name for name, count in Counter(pq.read_schema(path).names).items() if count > 1]
    if repeated:
        raise UserError(f"{path}: has several columns named {repeated[0]}. Rename them")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain or .gz, as they are read; only line feeds separate them.

    A byte order mark before the first is no part of it.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                place = f"{path}:{number}: not UTF-8 at byte {error.start + 1}"
                raise UserError(f"{place}; convert the file to UTF-8") from error


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file, unpacked if its name ends in .gz; UserError where it cannot be read, or holds no text against its name."""
    require_file(path)
    try:
        with cast(io.BufferedReader, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            words = other_content(file.peek(HEAD))
            if words and kind_of(path) != ".parquet":
                raise UserError(f"{path}: {words}")
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def kind_of(path: Path) -> str:
    """Return a file's suffix, packed or not."""
    return Path(path.name.removesuffix(".gz")).suffix


@cache
def refuse_lone_returns(path: Path, version: Version) -> None:
    """Raise UserError for a carriage return within a line, where pandas would begin another row. Once in each `version`.

    A file without line feeds has carriage returns in their place.
    """
    lone = 0
    for number, line in enumerate(read_lines(path), start=1):
        lone = lone or number * ("\r" in line)
        if lone and number > 1:
            raise UserError(f"{path}:{lone}: {LONE_RETURN}")


@cache
def refuse_ambiguous_rows(
    path: Path, version: Version, delimiter: str, quotechar: str | None, doublequote: bool, escapechar: str | None
) -> None:
    """Raise UserError for CSV whose quotation marks or carriage returns pandas would guess at. Once in each `version`.

    It joins text after a closing quotation mark to the cell, and of one that nobody closed it makes one cell of all rows up to
    the next.
    """
    lines = read_lines(path)
    first, second = next(lines, ""), next(lines, None)
    # A file without line feeds has carriage returns in their place.
    lines = iter(first.split("\r")) if second is None else itertools.chain([first, second], lines)
    rows = csv.reader(
        lines, delimiter=delimiter, quotechar=quotechar, doublequote=doublequote, escapechar=escapechar, strict=True)
    start, width = 1, 0
    try:
        for row in rows:
            width = width or len(row)
            if rows.line_num > start and len(row) != width:
                raise csv.Error
            start = rows.line_num + 1
    except csv.Error as error:
        if "new-line" in str(error):
            raise UserError(f"{path}:{rows.line_num}: {LONE_RETURN}") from error
        begun = f", in a row that begins in line {start}" if start < rows.line_num else ""
        raise UserError(
            f"{path}:{rows.line_num}: text follows a closing quotation mark, or one is never closed{begun}. Part the "
            f"cells by {delimiter!r}, close the marks around each cell, and double those within it") from error


@cache
def refuse_null_rows(path: Path, version: Version) -> None:
    """Raise UserError for a row that is null: PyArrow's reader of JSON dies of one, and the process with it.

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
            raise UserError(f"{path}: row {number:,} is null instead of an object. Remove it")


def first_flaw(path: Path) -> str | None:
    """Return where a text file stops being UTF-8 or, in JSON Lines, JSON: looked for when it could not be loaded."""
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
    log(text)
