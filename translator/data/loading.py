"""Load splits of datasets in local folders and on the hub. Local files are read anew each time, never from a cache."""

from __future__ import annotations

import csv
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetBuilder
from datasets.packaged_modules.csv.csv import CsvConfig
from huggingface_hub import DatasetCard
from huggingface_hub.utils import disable_progress_bars

from translator.config.options import DataConfig
from translator.data.cleaning import READ_ROWS
from translator.data.table_files import read_table, text_columns
from translator.runtime.errors import UserError, one_line

# How `datasets` reads CSV and TSV of the hub without guessing: 007 stays 007, NA stays text, and a quotation mark in TSV is a
# character. Columns after the first 1000 may be converted.
CSV = {"keep_default_na": False, "converters": dict.fromkeys(range(1000), str)}
TSV = CSV | {"quoting": csv.QUOTE_NONE}
# pandas names a column so if rows have more cells than the header.
UNNAMED = "__index_level_"
# Files that `save_to_disk` writes: for a dataset with splits, and for one without.
SAVED = ("dataset_dict.json", "state.json")
# Files in a folder that say how its data files are read.
CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")

if not sys.stderr.isatty():
    datasets.disable_progress_bars()
    disable_progress_bars()
# The readers log what they then raise. Nor must a folder's README be a dataset card.
for name in ("datasets.packaged_modules", "huggingface_hub.repocard"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


def load_path(
    config: DataConfig, split: str, names: Sequence[str], where: str, *, streaming: bool
) -> Iterator[pa.Table]:
    """Yield the columns `names` of a split, or of slices such as train[:10%]+test, as tables of strings.

    where: begins error messages. streaming: fetch data on the hub as they are read.
    """
    path = require_path(config)
    if not Path(path).is_dir():
        yield from _tables_of(load_from_hub(config, split, streaming=streaming), names, where)
        return
    if _is_saved(path):
        splits = {name: partial(_tables_of, rows, names, where) for name, rows in _saved_splits(path).items()}
    else:
        files, delimiter = _files_by_split(config)
        splits = {name: partial(_tables_of_files, files[name], names, delimiter) for name in files}
    yield from _sliced(splits, split)


def local_files(config: DataConfig) -> list[Path]:
    """Return the files that the splits of a local folder are read from, and those that say how."""
    path = require_path(config)
    if _is_saved(path):
        files = {Path(file["filename"]) for rows in _saved_splits(path).values() for file in rows.cache_files}
        folders = {Path(path), *(file.parent for file in files)}
        return sorted(files.union(*(folder.glob("*.json") for folder in folders)))
    with as_user_error(f"data.path={path}"):
        by_split, _ = _files_by_split(config)
    wanted = [split for split in (config.train, config.validation, config.test) if isinstance(split, str)]
    names = {part.partition("[")[0].strip() for split in wanted for part in split.split("+")}
    files = {Path(file) for name in by_split if name in names or not names <= by_split.keys() for file in by_split[name]}
    return sorted(files | {card for card in map(Path(path).joinpath, CARDS) if card.is_file()})


def hub_id(path: str) -> str | None:
    """Return `data.path` if it is a dataset's id on the hub; None for a folder, even one that is missing."""
    return None if Path(path).exists() or path.startswith((".", "/", "~", "data/")) or path.count("/") > 1 else path


def require_path(config: DataConfig) -> str:
    """Return `data.path`; UserError, before the hub is asked, if it can be neither a folder nor a hub id."""
    path = config.path or ""
    if not all(isinstance(split, str | None) for split in (config.train, config.validation, config.test)):
        raise UserError(f"data.path={path}: its splits go by name. Set data.path=null to name files")
    if Path(path).is_file():
        raise UserError(f"data.path={path}: is a file. Set data.path=null data.train={path}")
    if not Path(path).exists() and hub_id(path) is None:
        hint = ". `make data` fetches the default data" if path.startswith("data/") else ""
        raise UserError(f"data.path={path}: no such folder{hint}")
    if config.folder is not None and Path(path).is_dir() and not (Path(path) / config.folder).is_dir():
        raise UserError(f"data.folder={config.folder}: no such folder in {path}")
    return path


def load_from_hub(config: DataConfig, split: str, *, streaming: bool = False) -> Any:
    """Return a split of a dataset on the hub as a Dataset, or an IterableDataset. `datasets` caches every commit."""
    path, options = require_path(config), _builder_options(config)
    try:
        reader = datasets.load_dataset_builder(path, **options).config
        if isinstance(reader, CsvConfig):
            options |= TSV if reader.sep == "\t" else CSV
    except ValueError:  # no network: `datasets` finds a cached copy by the options that it was read with
        for table_options in (CSV, TSV):
            with suppress(ValueError, TypeError):
                return datasets.load_dataset(path, split=split, streaming=streaming, **options, **table_options)
    return datasets.load_dataset(path, split=split, streaming=streaming, **options)


def _builder_options(config: DataConfig) -> dict[str, Any]:
    return {"name": config.config, "data_dir": config.folder, "revision": config.revision}


def _tables_of(rows: Any, names: Sequence[str], where: str) -> Iterator[pa.Table]:
    """Yield the text columns of a Dataset or IterableDataset; its values are not decoded, so none can open a file."""
    for table in rows.with_format("arrow").iter(READ_ROWS):
        if any(name.startswith(UNNAMED) for name in table.column_names):
            raise UserError(f"{where}: its rows have more cells than its header")
        yield text_columns(table, names, where)


def _sliced(splits: Mapping[str, Callable[[], Iterator[pa.Table]]], value: str) -> Iterator[pa.Table]:
    """Yield the tables of a split, or those of slices of splits."""
    if value in splits:
        yield from splits[value]()
        return
    lengths = {name: sum(map(len, tables())) if name in value else 0 for name, tables in splits.items()}
    for part in datasets.ReadInstruction.from_spec(value).to_absolute(lengths):
        start, end = part.from_, part.to
        for table in splits[part.splitname]():
            yield table.slice(max(0, start), max(0, end - max(0, start)))
            start, end = start - len(table), end - len(table)


# Local folders


def _is_saved(path: str) -> bool:
    """Return whether `save_to_disk` wrote this folder."""
    return any((Path(path) / name).is_file() for name in SAVED)


def _saved_splits(path: str) -> dict[str, Dataset]:
    """Return the splits of a dataset that was saved to disk; UserError if it names files in other folders."""
    with as_user_error(f"data.path={path}"):
        saved = datasets.load_from_disk(path)
    if isinstance(saved, Dataset):
        splits = {str(saved.split or "train"): saved}
    else:
        splits = {str(name): rows for name, rows in saved.items()}
    for file in (Path(file["filename"]) for rows in splits.values() for file in rows.cache_files):
        if not file.parent.resolve().is_relative_to(Path(path).resolve()):
            raise UserError(f"data.path={path}: its state.json names {file}, which lies outside. Move that file into it")
    return splits


def _tables_of_files(files: Sequence[str], names: Sequence[str], delimiter: str) -> Iterator[pa.Table]:
    for file in files:
        yield from read_table(Path(file), names, delimiter)


def _files_by_split(config: DataConfig) -> tuple[dict[str, list[str]], str]:
    """Return the files of each split of a local folder, and what separates the cells of its CSV.

    `datasets` finds the files, by their names or the folder's card. UserError where a card names files outside of the folder.
    """
    path = require_path(config)
    if (card := Path(path) / "README.md").is_file():
        configs = str(DatasetCard.load(card).data.to_dict().get("configs"))
        if "://" in configs:  # `datasets` would fetch it
            raise _outside(path, one_line(configs)[:200])
    with tempfile.TemporaryDirectory() as cache:
        builder: DatasetBuilder = datasets.load_dataset_builder(path, cache_dir=cache, **_builder_options(config))
    files = {str(name): list(files) for name, files in (builder.config.data_files or {}).items()}
    roots = [Path(path).resolve(), Path(path, config.folder or "").resolve()]  # the second may be a link
    for file in itertools.chain.from_iterable(files.values()):
        if "://" in file or not any(Path(os.path.normpath(file)).is_relative_to(root) for root in roots):
            raise _outside(path, file)
    return files, builder.config.sep if isinstance(builder.config, CsvConfig) else ","


def _outside(path: str, file: str) -> UserError:
    return UserError(
        f"data.path={path}: its card (README.md) names {file}, which lies outside of this folder. Copy the file into it, or "
        "name it: data.path=null data.train=FILE")


@contextmanager
def as_user_error(where: str) -> Iterator[None]:
    """Turn any error while data load into a UserError that begins with `where`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each format and failure has its own type
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(f"{where}: cannot be loaded: {one_line(str(cause))[:600]} ({type(cause).__name__})") from error
