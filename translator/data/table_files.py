"""Read text columns of CSV, TSV, JSON, JSON Lines and Parquet files; refuse files that would have to be guessed at."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from translator.data.cleaning import READ_ROWS
from translator.data.text_files import kind_of, opened, read_lines
from translator.runtime.console import log
from translator.runtime.errors import UserError, one_line

KINDS = (".json", ".jsonl", ".parquet", ".csv", ".tsv")
LONE_RETURN = "a carriage return inside the line. Remove it"
csv.field_size_limit(sys.maxsize)  # a cell may hold a document
_warn_once = cache(log)  # a stream reads a file again and again


def read_table(path: Path, names: Sequence[str], delimiter: str = ",", score: str | None = None) -> Iterator[pa.Table]:
    """Yield the columns `names` of a file, or these languages of its `translation` column, `READ_ROWS` rows at a time.

    path: one of `KINDS`, plain or .gz. delimiter: separates the cells of .csv. score: one more column, of numbers as text.
    Columns are strings. Values that are not text become null.
    Raise UserError where the file is damaged or ambiguous, or has no such columns.
    """
    kind = kind_of(path)
    if kind not in KINDS:
        raise UserError(f"{path}: expected {', '.join(KINDS)}, plain or .gz, or two text files as [SOURCES,TARGETS]")
    if kind == ".parquet":
        yield from _read_parquet(path, names, score)
    elif kind in (".csv", ".tsv"):
        rows = _csv_rows(path, delimiter) if kind == ".csv" else _tsv_rows(path)
        yield from _read_cells(path, names, rows, score)
    else:
        yield from _read_json(path, names, score)


def text_columns(table: pa.Table, names: Sequence[str], where: Path | str, score: str | None = None) -> pa.Table:
    """Return the columns `names`, or these languages of the `translation` column, as strings, and the column `score`.

    `where` begins a UserError.
    """
    translation = table.schema.field("translation").type if "translation" in table.column_names else None
    languages = [field.name for field in translation] if translation and pa.types.is_struct(translation) else []
    if _are_languages(names, table.column_names, languages, where):
        columns = [pc.struct_field(table["translation"], name) for name in names]
    else:
        columns = [table[name] for name in names]
    texts = pa.table([_strings(column, name, where) for name, column in zip(names, columns, strict=True)], list(names))
    if score is None:
        return texts
    _require_score(score, table.column_names, where)
    return texts.append_column(score, table[score].cast(pa.string()))


def _require_score(score: str, columns: Collection[str], where: Path | str) -> None:
    if score not in columns:
        raise UserError(f"{where}: has no column {score}, but {', '.join(columns)}. Set data.score")


def _are_languages(names: Sequence[str], columns: Collection[str], languages: Collection[str], where: Path | str) -> bool:
    """Return whether `names` are languages of a `translation` column, not columns; UserError if they are neither."""
    nested = bool(languages) and not set(names) <= set(columns)
    available = languages if nested else columns
    for name in names:
        if name not in available:
            raise UserError(
                f"{where}: has no column or language {name}, but {', '.join(available)}. Set data.source and data.target")
    return nested


def _strings(column: pa.ChunkedArray, name: str, where: Path | str) -> pa.ChunkedArray:
    """Return a column as valid UTF-8 strings; UserError for a column of a wrong type."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if kind == pa.json_():  # values of several types, as `datasets` stores them
        values = column.cast(pa.string()).to_pylist()
        return pa.chunked_array([_text_array([value and json.loads(value) for value in values])])
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
            or pa.types.is_null(kind)):
        raise UserError(
            f"{where}: column {name} holds {kind} instead of text. Set data.source and data.target to columns of text")
    strings = column.cast(pa.string())
    strings.validate(full=True)
    return strings


def _text_array(values: Sequence[Any]) -> pa.Array:
    """Return strings, with null for what is no text that UTF-8 can hold: JSON can spell half of a surrogate pair."""
    texts = (isinstance(value, str) and value.encode(errors="ignore").decode() == value for value in values)
    return pa.array([value if is_text else None for value, is_text in zip(values, texts, strict=True)], pa.string())


def _read_cells(path: Path, names: Sequence[str], rows: Iterator[tuple[int, list[str]]], score: str | None
                ) -> Iterator[pa.Table]:
    """Yield tables of the numbered rows of a file with a header."""
    _, header = next(rows, (1, list[str]()))
    if not header:
        raise UserError(f"{path}: is empty. Write a header line with the columns' names, and a pair a line")
    if not set(names) & set(header):
        first = " | ".join(header)[:300].rstrip(".")
        raise UserError(f"{path}: its first line names neither {' nor '.join(names)}: {first}. If that is data, add a "
                        "header line with the columns' names. Otherwise set data.source and data.target")
    _are_languages(names, header, (), path)
    if score is not None:
        _require_score(score, header, path)
        names = [*names, score]
    for name in names:
        if header.count(name) > 1:
            raise UserError(f"{path}: its header names {name} twice. Rename one of the columns")
    places = [header.index(name) for name in names]
    while batch := list(islice(rows, READ_ROWS)):
        for line, cells in batch:
            if len(cells) > len(header):
                raise UserError(
                    f"{path}:{line}: has more cells than its header ({len(cells)}, not {len(header)}). Name every column in it")
        columns = [[cells[place] if place < len(cells) else "" for _, cells in batch] for place in places]
        yield pa.table([pa.array(column, pa.string()) for column in columns], list(names))


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each line. A quotation mark is a character like any other."""
    for number, line in enumerate(read_lines(path), start=1):
        if "\r" in line:
            raise UserError(f"{path}:{number}: {LONE_RETURN}")
        if line.strip(" "):
            yield number, line.split("\t")


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row; UserError for quotation marks that a tolerant parser would guess at."""
    rows = csv.reader(read_lines(path, keep_ends=True), delimiter=delimiter, strict=True)
    start, width = 1, 0
    try:
        for row in rows:
            width = width or len(row)
            if rows.line_num > start:
                if len(row) != width:  # from an unclosed quotation mark to the next, rows become one cell
                    raise csv.Error
                _warn_once(f"warning: {path}: some cells hold line breaks. If they should not, a quotation mark is not closed")
            if len(row) > 1 or "".join(row).strip():
                yield rows.line_num, row
            start = rows.line_num + 1
    except csv.Error as error:
        if "new-line" in str(error):
            raise UserError(f"{path}:{rows.line_num}: {LONE_RETURN}") from error
        begins = f", in a row that begins in line {start}" if start < rows.line_num else ""
        raise UserError(
            f"{path}:{rows.line_num}: text follows a closing quotation mark, or a quotation mark is never closed{begins}. "
            f"Separate cells by {delimiter!r}, close the marks around each cell, and double those inside") from error


def _read_json(path: Path, names: Sequence[str], score: str | None) -> Iterator[pa.Table]:
    """Yield tables of a file of objects. The first rows decide which columns there are."""
    rows = _json_objects(path)
    nested = None
    while batch := list(islice(rows, READ_ROWS)):
        translations = [row.get("translation") for row in batch]
        if nested is None:
            languages = dict.fromkeys(itertools.chain(*(value for value in translations if isinstance(value, dict))))
            columns = dict.fromkeys(itertools.chain(*batch))
            nested = _are_languages(names, columns, languages, path)
            if score is not None:
                _require_score(score, columns, path)
        objects = [value if isinstance(value, dict) else {} for value in translations] if nested else batch
        table = pa.table([_text_array([row.get(name) for row in objects]) for name in names], list(names))
        if score is not None:
            table = table.append_column(score, pa.array([str(row.get(score)) for row in batch], pa.string()))
        yield table


def _json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file: one a line, or all in one list."""
    lines = read_lines(path)
    first = next(lines, "")
    in_list = first.lstrip().startswith("[")
    texts = ["\n".join([first, *lines])] if in_list else itertools.chain([first], lines)
    for number, text in ((number, text) for number, text in enumerate(texts, start=1) if text.strip()):
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{max(number, error.lineno)}: not JSON at column {error.colno}: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists
            raise UserError(f"{path}:{number}: JSON cannot be read: {error}") from error
        for place, row in enumerate(value if in_list else [value], start=number):
            if not isinstance(row, dict):
                kind = "null" if row is None else type(row).__name__
                raise UserError(f"{path}: row {place:,} is {kind} instead of an object. Remove it")
            yield row


def _read_parquet(path: Path, names: Sequence[str], score: str | None) -> Iterator[pa.Table]:
    try:
        with opened(path) as content:
            file = pq.ParquetFile(pa.BufferReader(content.read()) if path.suffix == ".gz" else path)
        wanted = [*names, "translation", *([] if score is None else [score])]
        columns = [name for name in wanted if name in file.schema_arrow.names]
        are_there = "translation" in columns or set(names) <= set(columns)  # else a message names all columns
        for batch in file.iter_batches(READ_ROWS, columns=columns if are_there else None):
            yield text_columns(pa.Table.from_batches([batch]), names, path, score)
    except (pa.ArrowException, KeyError) as error:
        raise UserError(f"{path}: cannot be read as Parquet: {one_line(str(error))[:600]}") from error
