"""Load tables from files, local folders and the hub, with nothing local taken from a cache."""

from __future__ import annotations

import csv
import glob
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetBuilder
from datasets.packaged_modules.csv.csv import CsvConfig
from datasets.packaged_modules.json.json import JsonConfig
from huggingface_hub import DatasetCard
from huggingface_hub.utils import disable_progress_bars

from translator.config.options import DataConfig, Files
from translator.data.text_files import (
    first_flaw,
    kind_of,
    refuse_ambiguous_rows,
    refuse_lone_returns,
    refuse_null_rows,
    refuse_other_content,
    require_file,
    version_of,
)
from translator.runtime.console import log
from translator.runtime.errors import UserError, one_line

# Of a table. Types are guessed in any beyond these, where a number may cost its zeros and some later text the file.
MOST_COLUMNS = 1000
# CSV and TSV as they stand: 007 stays 007, no cell means "missing", however it is spelt, and in TSV a quotation mark is a
# character.
CSV = {"keep_default_na": False, "converters": dict.fromkeys(range(MOST_COLUMNS), str)}
TSV = CSV | {"quoting": csv.QUOTE_NONE}
# What `save_to_disk` leaves beside the data: of a dataset with splits, of one without.
SAVED = ("dataset_dict.json", "state.json")
# Files in a folder that can say how its data files are read.
CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
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


def load_table(config: DataConfig, path: Path, *, streaming: bool = False) -> Dataset:
    """Return the rows of one file; `streaming`: as an iterable dataset, which is read as it is used."""
    kind = kind_of(path)
    reader = READERS.get(kind)
    if reader is None:
        raise UserError(
            f"{path}: expected {', '.join(READERS)}, plain or .gz, or a pair of text files as [SOURCES,TARGETS]")
    require_file(path)
    if not path.stat().st_size:
        raise UserError(f"{path}: is empty")
    builder, options = reader
    return _load_local(config, builder, "train", streaming, data_files=glob.escape(os.fspath(path)), **options)


def load_path(config: DataConfig, value: Files, *, streaming: bool = False) -> Dataset:
    """Return a split of a dataset on the hub or in a local folder; `streaming`: as an iterable dataset."""
    path = require_path(config)
    assert isinstance(value, str)  # as `require_path` has found
    if _is_saved(path):
        saved = _load_saved(path, value)
        return saved.to_iterable_dataset() if streaming else saved
    load = _load_local if Path(path).is_dir() else _load_from_hub
    return load(config, path, value, streaming, **_named(config))


def files_of(config: DataConfig) -> list[Path]:
    """Return the files that the splits of a local folder are read from, and those that say how."""
    path = require_path(config)
    if _is_saved(path):
        files = {Path(file["filename"]) for rows in _saved_splits(path).values() for file in rows.cache_files}
        folders = {Path(path), *(file.parent for file in files)}
        return sorted(files.union(*(folder.glob("*.json") for folder in folders)))
    with as_user_error(f"data.path={path}"), tempfile.TemporaryDirectory() as scratch:
        builder = _builder(path, scratch, **_named(config))
    wanted = [split for split in (config.train, config.validation, config.test) if isinstance(split, str)]
    files = {Path(file) for files in _of_splits(builder, *wanted).values() for file in files}
    return sorted(files | {card for card in map(Path(path).joinpath, CARDS) if card.is_file()})


def hub_id(path: str) -> str | None:
    """Return `data.path` if it is a dataset's id on the hub; None for a folder, there or not any more."""
    return None if Path(path).exists() or path.startswith((".", "/", "~", "data/")) or path.count("/") > 1 else path


def require_path(config: DataConfig) -> str:
    """Return `data.path`; UserError for what can be neither a folder nor a hub id, before the hub is asked."""
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


def _is_saved(path: str) -> bool:
    """Return whether `save_to_disk` wrote this folder."""
    return any((Path(path) / name).is_file() for name in SAVED)


def _load_saved(path: str, value: str) -> Dataset:
    """Return a split, or slices such as train[:10%]+test, of a dataset that was saved to disk."""
    splits = _saved_splits(path)
    parts = datasets.ReadInstruction.from_spec(value).to_absolute({name: len(rows) for name, rows in splits.items()})
    return datasets.concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])


def _saved_splits(path: str) -> dict[str, Dataset]:
    """Return the splits of a dataset that was saved to disk; UserError where a file of theirs lies elsewhere."""
    with as_user_error(f"data.path={path}"):
        saved = datasets.load_from_disk(path)
    splits = {str(saved.split or "train"): saved} if isinstance(saved, Dataset) else dict(saved)
    for file in (Path(file["filename"]) for rows in splits.values() for file in rows.cache_files):
        if not file.parent.resolve().is_relative_to(Path(path).resolve()):
            raise UserError(f"data.path={path}: its state.json names a file outside of it, {file}. Put that file into it")
    return splits


def _named(config: DataConfig) -> dict[str, Any]:
    """Return the options that name a part of a folder or of a repository."""
    return {"name": config.config, "data_dir": config.folder, "revision": config.revision}


def _load_local(config: DataConfig, path: str, split: str, streaming: bool, **options: Any) -> Dataset:
    """Read a split of a local folder or of `data_files`, with tables as they stand, or refused where that cannot be.

    path: a folder, or the name of the reader of `data_files`. It is read anew each time: the cache of `datasets` knows a
    file by its name and time, or by what a card says of it, and would return rows that it no longer holds.
    """
    with tempfile.TemporaryDirectory() if streaming else folder_in_cache(config) as scratch:  # a stream writes next to nothing
        builder = _builder(path, scratch, **options)
        reader = builder.config
        for name, value in _as_they_stand(reader).items():
            setattr(reader, name, value)
        reader.data_files = type(reader.data_files)(_of_splits(builder, split))
        for file in map(Path, itertools.chain.from_iterable(reader.data_files.values())):
            if kind_of(file) in READERS:  # no archive
                _refuse_misread(file, reader)
        if streaming:
            return builder.as_streaming_dataset(split)
        described = {name: info.num_examples for name, info in (builder.info.splits or {}).items()}
        builder.download_and_prepare(verification_mode="no_checks")
        for name, info in builder.info.splits.items():
            if info.num_examples != described.get(name, info.num_examples):
                log(f"warning: data.path={path}: its card says that {name} has {described[name]:,} rows; it has "
                    f"{info.num_examples:,}")
        return builder.as_dataset(split)


def _builder(path: str, cache: str, **options: Any) -> DatasetBuilder:
    """Return the builder of local data; UserError where a card names files that lie elsewhere."""
    if (card := Path(path) / "README.md").is_file():
        for place in _places(DatasetCard.load(card).data.to_dict().get("configs")):
            if "://" in place or Path(place).is_absolute() or ".." in Path(place).parts:  # which might be fetched
                raise _outside(path, place)
    builder = datasets.load_dataset_builder(path, cache_dir=cache, **options)
    roots = [Path(path).resolve(), Path(path, options.get("data_dir") or "").resolve()]  # the second may be a link
    for file in itertools.chain.from_iterable((builder.config.data_files or {}).values()):
        inside = any(Path(os.path.normpath(file)).is_relative_to(root) for root in roots)
        if "data_files" not in options and ("://" in file or not inside):
            raise _outside(path, file)
    return builder


def _places(configs: Any) -> Iterator[str]:
    """Yield the files and folders that the `configs` of a card name, in whichever of its forms."""
    if isinstance(configs, str):
        yield configs
    elif isinstance(configs, Mapping):
        for name, value in configs.items():
            if name in ("data_files", "data_dir", "path") or not isinstance(value, str):
                yield from _places(value)
    elif isinstance(configs, Sequence):
        for value in configs:
            yield from _places(value)


def _outside(path: str, file: str) -> UserError:
    return UserError(
        f"data.path={path}: its card (README.md) names {file}, which lies outside of this folder. Copy the file into it, or "
        "name the file itself: data.path=null data.train=FILE")


def _of_splits(builder: DatasetBuilder, *named: str) -> dict[str, list[str]]:
    """Return the files by split of the splits named, such as train[:10%]+test; of all where there is no such split."""
    files = dict(builder.config.data_files or {})
    names = {part.partition("[")[0].strip() for value in named for part in value.split("+")}
    return {name: files[name] for name in files if name in names} if names <= files.keys() else files


def _as_they_stand(reader: datasets.BuilderConfig) -> dict[str, Any]:
    """Return the options by which tables are read as they stand."""
    return (TSV if reader.sep == "\t" else CSV) if isinstance(reader, CsvConfig) else {}


def _refuse_misread(file: Path, reader: datasets.BuilderConfig) -> None:
    """Raise UserError for a file that its reader would take for something else."""
    refuse_other_content(file)
    if isinstance(reader, JsonConfig):
        refuse_null_rows(file, version_of(file))
    elif isinstance(reader, CsvConfig) and reader.quoting == csv.QUOTE_NONE:
        refuse_lone_returns(file, version_of(file))
    elif isinstance(reader, CsvConfig) and len(reader.sep or "") == 1:
        refuse_ambiguous_rows(file, version_of(file), reader.sep, reader.quotechar, reader.doublequote, reader.escapechar)


def _load_from_hub(config: DataConfig, path: str, split: str, streaming: bool, **options: Any) -> Dataset:
    """Return a split of a dataset on the hub, of which `datasets` caches every commit, with tables as they stand.

    They cannot be looked into before they are fetched.
    """
    try:
        options |= _as_they_stand(datasets.load_dataset_builder(path, **options).config)
    except ValueError:  # without a network, of tables that were read before: a copy is known by the options it was read with
        for reading in (CSV, TSV):
            with suppress(ValueError, TypeError):
                return datasets.load_dataset(path, split=split, streaming=streaming, **options, **reading)
        raise
    return datasets.load_dataset(path, split=split, streaming=streaming, **options)


def folder_in_cache(config: DataConfig) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for files that a dataset maps: they outlive their names, except on NFS, which keeps them."""
    Path(config.cache).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="__", dir=config.cache, ignore_cleanup_errors=True)


@contextmanager
def as_user_error(where: str, file: Path | None = None) -> Iterator[None]:
    """Turn any error while data load into a UserError; of a `file` that is text, with the place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each format and failure has its own type
        flaw = None if file is None else first_flaw(file)
        raise UserError(flaw or f"{where}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what went wrong, in the words of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = one_line(str(error))
    if "corresponds to no data" in words:
        return "holds no rows"
    if "Error tokenizing data" in words:
        words += "; commas part the cells of .csv, tabs those of .tsv, and a quotation mark must be closed"
    return f"cannot be loaded: {words[:600]} ({type(error).__name__})"
