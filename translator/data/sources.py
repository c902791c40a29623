"""Any Hugging Face translation dataset or file as rows of a source and a target."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Json, Value
from datasets.arrow_writer import ArrowWriter
from datasets.table import InMemoryTable

from translator.config.languages import tag_of
from translator.config.options import DataConfig
from translator.data.loading import READERS, as_user_error, folder_in_cache, load_path, load_table
from translator.data.text_files import Version, kind_of, read_lines, version_of, warn_of_line_breaks
from translator.runtime.errors import UserError

# Lines of paired files that are held at once.
READ_LINES = 10_000
SPLITS = ("train", "validation", "test")
# How the types of Arrow begin whose values are numbers.
NUMBERS = ("int", "uint", "float", "double", "decimal", "bool")
# How the name of a column begins that pandas makes of a table's first cells where its rows have more than its header.
UNNAMED = "__index_level_"


def read(config: DataConfig, split: str) -> Dataset | None:
    """The rows of a split as they are, in the columns source and target; None if `config` names no such split.

    UserError where the data cannot be found or read, or has no such columns.
    """
    value = getattr(config, split)
    if value is None:
        return None
    if split == "train" and config.window is not None:
        return next(windows(config))
    where = _where(config, split)
    with as_user_error(where, Path(value) if config.path is None and isinstance(value, str) else None):
        rows = load_path(config, value) if config.path is not None else _load_files(config, value, where)
        _require_header(rows, rows.column_names, config, where)
        pairs = _pairs_of_text(rows, config, where)
    if not len(pairs):
        raise UserError(f"{where}: holds no rows")
    if rows.info.builder_name == "csv":
        warn_of_line_breaks(rows.data.table, where)
    return pairs


def windows(config: DataConfig, start: int = 0) -> Iterator[Dataset]:
    """The rows of train, `data.window` at a time, in the columns source and target; never all of them at once.

    What is left in the end belongs to the window before it. From number `start` on, where after the last of the data comes the
    first again.
    """
    where = _where(config, "train")
    number = 0
    while True:
        empty = True
        for table in _whole(_tables(config, where), where):
            if number >= start:
                with as_user_error(where):
                    pairs = _pairs_of_text(Dataset(InMemoryTable(table)), config, where)
                yield pairs
            number, empty = number + 1, False
        if empty:
            raise UserError(f"{where}: holds no rows")
        if number < start:  # so many windows has a pass, and whole ones need not be read
            number += (start - number) // number * number


def _tables(config: DataConfig, where: str) -> Iterator[pa.Table]:
    """One pass over the rows of train, as tables of `data.window` rows."""
    assert config.window is not None  # else nobody asks
    with as_user_error(where, Path(config.train) if config.path is None and isinstance(config.train, str) else None):
        if config.path is None and not isinstance(config.train, str):
            yield from _tables_of_lines(config, config.train, where)
            return
        rows = (
            load_table(config, Path(config.train), streaming=True) if config.path is None and isinstance(config.train, str)
            else load_path(config, config.train, streaming=True))
        for table in rows.with_format("arrow").iter(config.window):
            _require_header(rows, table.column_names, config, where)
            if rows.info.builder_name == "csv":
                warn_of_line_breaks(table, where)
            yield table


def _whole(tables: Iterator[pa.Table], where: str) -> Iterator[pa.Table]:
    """The tables, with the last joined to the one before where it is shorter: of a single row, cleaning might leave nothing."""
    held = next(tables, None)
    if held is None:
        return
    for table in tables:
        if len(table) == len(held):
            yield held
            held = table
        else:
            with as_user_error(where):
                held = pa.concat_tables([held, table], promote_options="permissive")
    yield held


def _tables_of_lines(config: DataConfig, paths: Sequence[str], where: str) -> Iterator[pa.Table]:
    _refuse_unequal(tuple(paths), where, tuple(version_of(Path(path)) for path in paths))
    pairs = itertools.chain.from_iterable(zip(*batch, strict=True) for batch in _line_pairs(paths, where))
    while some := list(islice(pairs, config.window)):
        yield pa.table(dict(zip((config.source, config.target), zip(*some, strict=True), strict=True)))


def _require_header(rows: Dataset, columns: Sequence[str], config: DataConfig, where: str) -> None:
    """Raise UserError where it is not clear from the first line of CSV or TSV which cells are meant."""
    if rows.info.builder_name != "csv":
        return
    names = list(dict.fromkeys(itertools.chain(*config.directions)))
    if not set(names) & set(columns):
        raise UserError(
            f"{where}: its first line names neither {' nor '.join(names)}: {' | '.join(columns)[:300]}. If that is data, add a "
            "header line with the columns' names; else set data.source and data.target")
    if any(name.startswith(UNNAMED) for name in columns):
        raise UserError(f"{where}: its rows have more cells than its header; name every column there")
    for name in names:
        if name in columns and f"{name}.1" in columns:  # how pandas calls the second
            raise UserError(f"{where}: its header names {name} twice, or {name}.1 as well; rename one of the columns")


def _where(config: DataConfig, split: str) -> str:
    """The options that name a split."""
    value = getattr(config, split)
    option = f"data.{split}={value if isinstance(value, str) else ','.join(value)}"
    return option if config.path is None else f"data.path={config.path} {option}"


def _load_files(config: DataConfig, value: str | Sequence[str], where: str) -> Dataset:
    """Return the rows of one file, or those of a file of sources and a file of targets, line by line."""
    if isinstance(value, str):
        return load_table(config, Path(value))
    columns = config.source, config.target
    with folder_in_cache(config) as folder:
        path = f"{folder}/pairs.arrow"
        with ArrowWriter(path=path, features=Features(dict.fromkeys(columns, Value("string")))) as writer:
            for batch in _line_pairs(value, where):
                writer.write_batch(dict(zip(columns, batch, strict=True)))
            writer.finalize()
        return Dataset.from_file(path)


def _line_pairs(paths: Sequence[str], where: str) -> Iterator[list[list[str]]]:
    """The lines of two files side by side, some thousands at a time; UserError where one has more than the other."""
    if len(paths) != 2:
        raise UserError(f"{where}: expected one file, or two: [SOURCES,TARGETS]")
    for path in paths:
        if kind_of(Path(path)) in READERS:
            raise UserError(f"{where}: {path} is a table, of which one is read at a time; two files are text, line by line")
    files = [read_lines(Path(path)) for path in paths]
    counts = [0, 0]
    while any(batch := [list(islice(file, READ_LINES)) for file in files]):
        counts = [count + len(lines) for count, lines in zip(counts, batch, strict=True)]
        if counts[0] != counts[1]:
            counts = [count + sum(1 for _ in file) for count, file in zip(counts, files, strict=True)]
            raise UserError(f"{paths[0]} has {counts[0]:,} lines, {paths[1]} {counts[1]:,}: they must be pairs")
        yield batch


@cache
def _refuse_unequal(paths: tuple[str, ...], where: str, versions: tuple[Version, ...]) -> None:
    """UserError for two files that are no pairs, before a stream trains on what has been shifted. Once in these `versions`."""
    for _ in _line_pairs(paths, where):
        pass


def _pairs_of_text(rows: Dataset, config: DataConfig, where: str) -> Dataset:
    """`_pairs`, of which each side is found to hold text, and all of it UTF-8."""
    pairs = _pairs(rows, config, where)
    _require_text(pairs, where)
    pairs.data.validate(full=True)  # JSON and Parquet are taken over without a look at their UTF-8
    return pairs


def _pairs(rows: Dataset, config: DataConfig, where: str) -> Dataset:
    """The columns of two languages, or those languages of a `translation` column, as source and target.

    Of more languages, every row in all directions, with the tag of the one wanted before each source if there is a choice.
    """
    names = list(dict.fromkeys(itertools.chain(*config.directions)))
    columns = {name: name for name in names}
    if "translation" in rows.column_names and not set(names) <= set(rows.column_names):
        rows = rows.select_columns(["translation"]).flatten()
        columns = {name: f"translation.{name}" for name in names}
    for name, column in columns.items():
        if column not in rows.column_names:
            there = ", ".join(column.removeprefix("translation.") for column in rows.column_names)
            raise UserError(f"{where}: has no column or language {name}, but {there}; set data.source and data.target")
    rows = rows.select_columns(list(columns.values())).with_format(None)  # a saved dataset may ask for another, such as tensors
    if len(config.directions) == 1:
        return rows.rename_columns(dict(zip(columns.values(), ("source", "target"), strict=True)))

    def in_all_directions(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = [dict(zip(names, row, strict=True)) for row in zip(*(batch[columns[name]] for name in names), strict=True)]
        return {
            "source": [
                f"{tag_of(target)}{row[source]}" if config.tags and _says_something(row[source]) else row[source]
                for row in texts for source, target in config.directions],
            "target": [row[target] for row in texts for _, target in config.directions]}

    with folder_in_cache(config) as folder:
        return rows.map(
            in_all_directions, batched=True, remove_columns=rows.column_names, cache_file_name=f"{folder}/pairs.arrow")


def _says_something(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _require_text(pairs: Dataset, where: str) -> None:
    """Raise UserError for a side that holds no text, before any of it is decoded: the path of an image may be any file's."""
    for side, feature in pairs.features.items():
        kind = feature.dtype if isinstance(feature, Value) else ""
        if not isinstance(feature, Value | Json) or kind.startswith(NUMBERS):  # Json: values of several types, text among them
            raise UserError(
                f"{where}: its {side} column holds no text, but {f'numbers ({kind})' if kind else feature}. Set data.{side} to "
                "a column of text, or write the values as text")
        if "string" not in kind:
            for _ in pairs.select_columns(side).iter(READ_LINES):  # a date without a place in the calendar shows here
                pass
