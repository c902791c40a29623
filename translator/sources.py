"""Any Hugging Face translation dataset or file as rows of a source and a target (floor 1)."""

from __future__ import annotations

import csv
import glob
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, Features, Json, Value
from datasets.arrow_writer import ArrowWriter
from datasets.packaged_modules.csv.csv import CsvConfig
from datasets.packaged_modules.json.json import JsonConfig
from datasets.table import InMemoryTable
from huggingface_hub.utils import disable_progress_bars

from translator.config import DataConfig
from translator.errors import UserError, one_line
from translator.languages import tag_of
from translator.text_files import (
    first_flaw,
    kind_of,
    read_lines,
    refuse_lone_returns,
    refuse_null_rows,
    require_file,
    version_of,
    warn_of_line_breaks,
)

# Lines of paired files that are held at once.
READ_LINES = 10_000
SPLITS = ("train", "validation", "test")
# Of a table. Types are guessed in any beyond these, where a number may cost its zeros and some later text the file.
MOST_COLUMNS = 1000
# CSV and TSV as they stand: 007 stays 007, no cell means "missing", however it is spelt, and in TSV a quotation mark is a
# character.
CSV = {"keep_default_na": False, "converters": dict.fromkeys(range(MOST_COLUMNS), str)}
TSV = CSV | {"quoting": csv.QUOTE_NONE}
# What `save_to_disk` leaves beside the data: of a dataset with splits, of one without.
SAVED = ("dataset_dict.json", "state.json")
# How the name of a column begins that pandas makes of a table's first cells where its rows have more than its header.
UNNAMED = "__index_level_"
READERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".json": ("json", {}), ".jsonl": ("json", {}), ".parquet": ("parquet", {}),
    ".csv": ("csv", {}), ".tsv": ("csv", {"sep": "\t"}),
}

if not sys.stderr.isatty():
    datasets.disable_progress_bars()
    disable_progress_bars()
# The readers log what they then raise: it is said once, as a UserError. Nor need every plain README be called one.
for name in ("datasets.packaged_modules", "huggingface_hub.repocard"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


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
    with _telling(where, Path(value) if config.path is None and isinstance(value, str) else None):
        rows = _load_path(config, value) if config.path is not None else _load_files(config, value, where)
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
                with _telling(where):
                    pairs = _pairs_of_text(Dataset(InMemoryTable(table)), config, where)
                yield pairs
            number, empty = number + 1, False
        if empty:
            raise UserError(f"{where}: holds no rows")
        if number < start:  # so many windows has a pass, and whole ones need not be read
            number += (start - number) // number * number


@contextmanager
def _telling(where: str, file: Path | None = None) -> Iterator[None]:
    """Inside, whatever keeps data from loading is a UserError; of a `file` that is text, with the place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # in as many types as there are formats and failures
        flaw = None if file is None else first_flaw(file)
        raise UserError(flaw or f"{where}: {_reason(error)}") from error


def _tables(config: DataConfig, where: str) -> Iterator[pa.Table]:
    """One pass over the rows of train, as tables of `data.window` rows."""
    assert config.window is not None  # else nobody asks
    with _telling(where, Path(config.train) if config.path is None and isinstance(config.train, str) else None):
        if config.path is None and not isinstance(config.train, str):
            yield from _tables_of_lines(config, config.train, where)
            return
        rows = (
            _load_table(Path(config.train), streaming=True) if config.path is None and isinstance(config.train, str)
            else _load_path(config, config.train, streaming=True))
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
            with _telling(where):
                held = pa.concat_tables([held, table], promote_options="permissive")
    yield held


def _tables_of_lines(config: DataConfig, paths: Sequence[str], where: str) -> Iterator[pa.Table]:
    _refuse_unequal(tuple(paths), where, tuple(version_of(Path(path)) for path in paths))
    pairs = itertools.chain.from_iterable(zip(*batch, strict=True) for batch in _line_pairs(paths, where))
    while some := list(islice(pairs, config.window)):
        yield pa.table(dict(zip((config.source, config.target), zip(*some, strict=True), strict=True)))


def _require_header(rows: Dataset, columns: Sequence[str], config: DataConfig, where: str) -> None:
    """UserError where it is not clear from the first line of CSV or TSV which cells are meant."""
    if rows.info.builder_name != "csv":
        return
    if any(name.startswith(UNNAMED) for name in columns):
        raise UserError(f"{where}: its rows have more cells than its header; name every column there")
    for name in itertools.chain(*config.directions):
        if name in columns and f"{name}.1" in columns:  # how pandas calls the second
            raise UserError(f"{where}: its header names {name} twice, or {name}.1 as well; rename one of the columns")


def _where(config: DataConfig, split: str) -> str:
    """The options that name a split."""
    value = getattr(config, split)
    option = f"data.{split}={value if isinstance(value, str) else ','.join(value)}"
    return option if config.path is None else f"data.path={config.path} {option}"


def _load_path(config: DataConfig, value: str | Sequence[str], *, streaming: bool = False) -> Dataset:
    """A split of a dataset on the hub or in a local folder; `streaming`: an iterable one, which is read as it is used."""
    if not isinstance(value, str):
        raise UserError(f"data.path={config.path}: its splits go by name; set data.path=null to name files")
    path = config.path or ""
    require_folder_or_hub_id(path)
    if any((Path(path) / name).is_file() for name in SAVED):
        saved = _load_saved(path, value)
        return saved.to_iterable_dataset() if streaming else saved
    if config.folder is not None and Path(path).is_dir() and not (Path(path) / config.folder).is_dir():
        raise UserError(f"data.folder={config.folder}: no such folder in {path}")
    return _load(path, value, streaming, name=config.config, data_dir=config.folder, revision=config.revision)


def hub_id(path: str) -> str | None:
    """`data.path` if it is a dataset's id on the hub; None for a folder, there or not any more."""
    return None if Path(path).exists() or path.startswith((".", "/", "~", "data/")) or path.count("/") > 1 else path


def require_folder_or_hub_id(path: str) -> None:
    """UserError for what is neither, before the hub is asked."""
    if Path(path).is_file():
        raise UserError(f"data.path={path}: is a file; set data.path=null data.train={path}")
    if not Path(path).exists() and hub_id(path) is None:
        hint = "; `make data` fetches the default data" if path.startswith("data/") else ""
        raise UserError(f"data.path={path}: no such folder{hint}")


def _load_saved(path: str, value: str) -> Dataset:
    """A split, or slices such as train[:10%]+test, of a dataset that was saved to disk."""
    saved = datasets.load_from_disk(path)
    splits = {str(saved.split or "train"): saved} if isinstance(saved, Dataset) else saved
    for file in (Path(file["filename"]) for rows in splits.values() for file in rows.cache_files):
        if not file.parent.resolve().is_relative_to(Path(path).resolve()):
            raise UserError(f"data.path={path}: its state.json names a file outside of it, {file}; put that file into it")
    parts = datasets.ReadInstruction.from_spec(value).to_absolute({name: len(rows) for name, rows in splits.items()})
    return datasets.concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])


def _load_files(config: DataConfig, value: str | Sequence[str], where: str) -> Dataset:
    """One file of rows, or a file of sources and a file of targets, line by line."""
    if isinstance(value, str):
        return _load_table(Path(value))
    columns = config.source, config.target
    with _folder_in_cache(config) as folder:
        path = f"{folder}/pairs.arrow"
        with ArrowWriter(path=path, features=Features(dict.fromkeys(columns, Value("string")))) as writer:
            for batch in _line_pairs(value, where):
                writer.write_batch(dict(zip(columns, batch, strict=True)))
            writer.finalize()
        return Dataset.from_file(path)


def _folder_in_cache(config: DataConfig) -> tempfile.TemporaryDirectory[str]:
    """A folder for a file that a dataset maps, which outlives its name. NFS alone keeps one, and so the folder stays there."""
    Path(config.cache).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="__", dir=config.cache, ignore_cleanup_errors=True)


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
def _refuse_unequal(paths: tuple[str, ...], where: str, versions: tuple[tuple[str, int, int], ...]) -> None:
    """UserError for two files that are no pairs, before a stream trains on what has been shifted. Once in these `versions`."""
    for _ in _line_pairs(paths, where):
        pass


def _load_table(path: Path, *, streaming: bool = False) -> Dataset:
    kind = kind_of(path)
    reader = READERS.get(kind)
    if reader is None:
        raise UserError(
            f"{path}: expected {', '.join(READERS)}, plain or .gz, or a pair of text files as [SOURCES,TARGETS]")
    require_file(path)
    if not path.stat().st_size:
        raise UserError(f"{path}: is empty")
    builder, options = reader
    return _load(builder, "train", streaming, data_files=glob.escape(os.fspath(path)), **options)


def _load(path: str, split: str, streaming: bool, **options: Any) -> Dataset:
    """`datasets.load_dataset`, with tables read as they stand, or refused where that cannot be.

    path: a folder, an id on the hub, or the name of the reader of `data_files`.
    """
    try:
        reader = datasets.load_dataset_builder(path, **options).config
    except ValueError:  # without a network, of tables that were read before: a copy is known by the options it was read with
        for reading in (CSV, TSV):
            with suppress(ValueError, TypeError):
                return datasets.load_dataset(path, split=split, streaming=streaming, **options, **reading)
        raise
    # Files on the hub cannot be looked into before they are fetched, nor those within a .zip.
    files = itertools.chain.from_iterable((reader.data_files or {}).values())
    here = [file for file in map(Path, files) if file.is_file() and kind_of(file) in READERS]
    tabs = isinstance(reader, CsvConfig) and reader.sep == "\t"
    if isinstance(reader, CsvConfig):
        options |= TSV if tabs else CSV
    for file in here:
        if isinstance(reader, CsvConfig):
            refuse_lone_returns(file, version_of(file), quotes=not tabs)
        if isinstance(reader, JsonConfig):
            refuse_null_rows(file, version_of(file))
    return datasets.load_dataset(path, split=split, streaming=streaming, **options)


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

    with _folder_in_cache(config) as folder:
        return rows.map(
            in_all_directions, batched=True, remove_columns=rows.column_names, cache_file_name=f"{folder}/pairs.arrow")


def _says_something(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _require_text(pairs: Dataset, where: str) -> None:
    """UserError for a side that holds no text, before any of it is decoded: the path of an image may be any file's."""
    for side, feature in pairs.features.items():
        if not isinstance(feature, Value | Json):  # Json: values of several types, text perhaps among them
            raise UserError(f"{where}: its {side} column holds no text, but {feature}")
        if not isinstance(feature, Value) or "string" not in feature.dtype:
            for _ in pairs.select_columns(side).iter(READ_LINES):  # a date without a place in the calendar shows here
                pass


def _reason(error: BaseException) -> str:
    """What went wrong, in the words of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = one_line(str(error))
    if "corresponds to no data" in words:
        return "holds no rows"
    if "Error tokenizing data" in words:
        words += "; commas part the cells of .csv, tabs those of .tsv, and a quotation mark must be closed"
    return f"cannot be loaded: {words[:600]} ({type(error).__name__})"
