"""Any translation dataset, in any supported form, as rows of a source and a target, with a fingerprint.

Local files are always read, never taken from a cache.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter
from datasets.packaged_modules.csv.csv import CsvConfig
from datasets.table import InMemoryTable
from huggingface_hub import DatasetCard, HfApi
from huggingface_hub.utils import disable_progress_bars

from translator.config.data import DataConfig, Files
from translator.config.languages import tag_of
from translator.data.cleaning import READ_ROWS
from translator.data.named_corpus import corpus_files
from translator.data.table_files import KINDS, read_table, text_columns
from translator.data.text_files import kind_of, read_lines, require_file, sha256_of
from translator.runtime.errors import UserError, one_line
from translator.runtime.typed import typed
from translator.text.context import Context

SPLITS = ("train", "validation", "test")
TEXT = Features({"source": Value("string"), "target": Value("string")})
SCORED = Features({**TEXT, "score": Value("string")})
# How `datasets` reads CSV and TSV of the hub without guessing: 007 stays 007, NA stays text, and a quotation mark in TSV is a
# character. Columns after the first 1000 may be converted.
CSV = {"keep_default_na": False, "converters": dict.fromkeys(range(1000), str)}
TSV = CSV | {"quoting": csv.QUOTE_NONE}

if not sys.stderr.isatty():
    datasets.disable_progress_bars()
    disable_progress_bars()
# The readers log what they then raise. Nor must a folder's README be a dataset card.
for name in ("datasets.packaged_modules", "huggingface_hub.repocard"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


def read(config: DataConfig, split: str) -> Dataset | None:
    """Return the rows of a split, unchanged, in the columns source and target; None if `config` names no such split.

    Values that are not text are null. UserError where the data cannot be found or read, or have no such columns.
    """
    config = _located(config, split)
    if getattr(config, split) is None:
        return None
    if split == "train" and config.window is not None:
        return next(windows(config))
    Path(config.cache).mkdir(parents=True, exist_ok=True)
    # The mapped file outlives its name, except on NFS, which keeps the folder.
    with tempfile.TemporaryDirectory(prefix="__", dir=config.cache, ignore_cleanup_errors=True) as folder:
        path = Path(folder) / f"{split}.arrow"
        features = TEXT if _score(config, split) is None else SCORED
        write_arrow(path, features, (_in_directions(table, config) for table in _tables(config, split)))
        rows = Dataset.from_file(str(path))
    if not len(rows):
        raise UserError(f"{_where(config, split)}: holds no rows")
    return rows


def windows(config: DataConfig, start: int = 0) -> Iterator[Dataset]:
    """Yield the rows of train, `data.window` at a time, without end, from window number `start` on.

    The last window of a pass also has the rest of its rows. After it the first comes again.
    """
    assert config.window is not None
    rows, config = config.window, _located(config, "train")
    if isinstance(config.train, tuple):  # refuse files of unequal length before training on shifted pairs
        for _ in _read_pairs(config.train, _where(config, "train")):
            pass
    number = 0
    while True:
        first_of_pass = number
        for table in _in_windows(_tables(config, "train"), rows):
            if number >= start:
                yield Dataset(InMemoryTable(_in_directions(table, config)))
            number += 1
        if number == first_of_pass:
            raise UserError(f"{_where(config, 'train')}: holds no rows")
        if number < start:  # after the first pass: skip the passes before the one that holds `start`
            number += (start - number) // number * number


def identity(config: DataConfig) -> list[Any]:
    """Return the path and SHA-256 of each file that is read, or the commit of data on the hub. Takes about a second a GB."""
    train, held_out = _located(config, "train"), (config.validation, config.test)
    if train is config:
        return _identity(config, config.train, *held_out)
    return _identity(train, train.train) + (_identity(config, *held_out) if any(held_out) else [])


def _identity(config: DataConfig, *values: Files | None) -> list[Any]:
    """Return the identity of these splits."""
    if config.path is None:
        files = [Path(file) for value in values for file in ((value,) if isinstance(value, str) else value or ())]
    else:
        path, names = _require_path(config), [value for value in values if isinstance(value, str)]
        if not is_local(config):
            try:
                return [str(HfApi().dataset_info(path, revision=config.revision, timeout=10).sha)]
            except Exception:  # the client raises many: no network, no such dataset, no access, switched off
                with _as_user_error(f"data.path={path}"):  # the copies that `datasets` has
                    return [_load_from_hub(config, name)._fingerprint for name in names]
        if Path(config.cache).resolve() == Path(path).resolve():
            raise UserError(f"data.cache={config.cache}: is data.path, and changes with every start. Name another folder")
        with _as_user_error(f"data.path={path}"):
            splits = _local_splits(config)
        wanted = {part.partition("[")[0].strip() for name in names for part in name.split("+")}
        files = sorted({file for name in (wanted if wanted <= splits.keys() else splits) for file in splits[name].files})
    for file in files:
        require_file(file)
    with ThreadPoolExecutor() as pool:  # hashing releases the lock
        return list(zip(map(str, files), pool.map(sha256_of, files), strict=True))


def is_local(config: DataConfig) -> bool:
    """Return whether the data are local files, which may change at any time."""
    return config.path is None or Path(config.path).is_dir()


def hub_id(path: str) -> str | None:
    """Return `data.path` if it is a dataset's id on the hub; None for a folder, even one that is missing."""
    return None if Path(path).exists() or path.startswith((".", "/", "~", "data/")) or path.count("/") > 1 else path


def _located(config: DataConfig, split: str) -> DataConfig:
    """Return options that name files where these name a corpus to train on."""
    if config.corpus is None or split != "train":
        return config
    return dataclasses.replace(config, corpus=None, version=None, path=None, train=corpus_files(config))


def _in_windows(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield tables of `rows` rows. The last also has the rest: of a single row, cleaning might leave nothing."""
    pending: pa.Table | None = None
    for table in tables:
        pending = table if pending is None else pa.concat_tables([pending, table])
        while len(pending) >= 2 * rows:
            yield pending.slice(0, rows)
            pending = pending.slice(rows)
    if pending is not None and len(pending):
        yield pending


def write_arrow(path: Path, features: Features, tables: Iterable[pa.Table]) -> None:
    """Write tables to a file that `Dataset.from_file` maps."""
    with ArrowWriter(path=str(path), features=features) as writer:
        for table in tables:
            writer.write_table(table)
        writer.finalize()


def _score(config: DataConfig, split: str) -> str | None:
    """Return the column of scores by which training pairs are kept."""
    return config.score if split == "train" else None


def _where(config: DataConfig, split: str) -> str:
    value = getattr(config, split)
    option = f"data.{split}={value if isinstance(value, str) else ','.join(value)}"
    return option if config.path is None else f"data.path={config.path} {option}"


def _tables(config: DataConfig, split: str) -> Iterator[pa.Table]:
    """Yield a split's rows as tables of strings with a column for each language, sources with their context."""
    tables = _raw_tables(config, split)
    return _in_context(tables, Context(config.context)) if config.context else tables


def _in_context(tables: Iterable[pa.Table], context: Context) -> Iterator[pa.Table]:
    """Put the sources before a source, of the same document, in front of it. A row without a source ends a document."""
    for table in tables:
        texts = ((context.before(text or ""), text) for text in table[0].to_pylist())
        sources = [text and before + text for before, text in texts]
        yield table.set_column(0, table.column_names[0], pa.array(sources, pa.string()))


def _raw_tables(config: DataConfig, split: str) -> Iterator[pa.Table]:
    """Yield a split's rows as tables of strings with a column for each language."""
    value = getattr(config, split)
    names, score = list(dict.fromkeys(itertools.chain(*config.directions))), _score(config, split)
    with _as_user_error(where := _where(config, split)):
        if config.path is None:
            yield from read_table(Path(value), names, score=score) if isinstance(value, str) else _read_pairs(value, where)
        elif Path(_require_path(config)).is_dir():
            splits = {name: partial(rows.tables, names, where, score) for name, rows in _local_splits(config).items()}
            yield from _sliced(splits, value)
        else:
            streaming = split == "train" and config.window is not None
            yield from _tables_of(_load_from_hub(config, value, streaming=streaming), names, where, score)


def _in_directions(table: pa.Table, config: DataConfig) -> pa.Table:
    """Return source and target: each row in all directions, with the tag of the target language where there is a choice.

    A last column of scores stays.
    """
    languages = set(itertools.chain(*config.directions))
    columns, scores = (list(TEXT), []) if table.num_columns == len(languages) else (list(SCORED), table.column_names[-1:])
    if len(config.directions) == 1 and not config.tags:
        return table.rename_columns(columns)
    rows = list[tuple[str | None, ...]]()
    for row in table.to_pylist():
        for source, target in config.directions:
            tagged = config.tags and row[source] is not None and row[source].strip()
            text = f"{tag_of(target)}{row[source]}" if tagged else row[source]
            rows.append((text, row[target], *(row[score] for score in scores)))
    return pa.table([pa.array(values, pa.string()) for values in zip(*rows, strict=True)], columns)


def _read_pairs(paths: Sequence[str], where: str) -> Iterator[pa.Table]:
    """Yield the lines of a file of sources and a file of targets; UserError where one has more lines than the other."""
    if table := next((path for path in paths if kind_of(Path(path)) in KINDS), None):
        raise UserError(f"{where}: {table} is a table. Name one table, or two text files with a sentence a line")
    files, counts = [read_lines(Path(path)) for path in paths], [0, 0]
    while any(batch := [list(islice(file, READ_ROWS)) for file in files]):
        counts = [count + len(lines) for count, lines in zip(counts, batch, strict=True)]
        if counts[0] != counts[1]:
            counts = [count + sum(1 for _ in file) for count, file in zip(counts, files, strict=True)]
            raise UserError(f"{paths[0]} has {counts[0]:,} lines, {paths[1]} {counts[1]:,}. They must be pairs.")
        yield pa.table([pa.array(lines, pa.string()) for lines in batch], ["source", "target"])


@contextmanager
def _as_user_error(where: str) -> Iterator[None]:
    """Turn any error while data load into a UserError that begins with `where`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each format and failure has its own type
        cause = error.__cause__ or error
        raise UserError(f"{where}: cannot be loaded: {one_line(str(cause))[:600]} ({type(cause).__name__})") from error


def _require_path(config: DataConfig) -> str:
    """Return `data.path`; UserError, before the hub is asked, if it can be neither a folder nor a hub id."""
    path = config.path or ""
    if not all(isinstance(split, str | None) for split in (config.train, config.validation, config.test)):
        raise UserError(f"data.path={path}: its splits go by name. Set data.path=null to name files")
    if Path(path).is_file():
        raise UserError(f"data.path={path}: is a file. Set data.path=null data.train={path}")
    if not Path(path).exists() and hub_id(path) is None:
        hint = f". `{typed('train')}` fetches the default data" if path.startswith("data/") else ""
        raise UserError(f"data.path={path}: no such folder{hint}")
    return path


def _load_from_hub(config: DataConfig, split: str, *, streaming: bool = False) -> Any:
    """Return a split of a dataset on the hub as a Dataset, or an IterableDataset. `datasets` caches every commit."""
    path = config.path or ""
    options: dict[str, Any] = {"name": config.config, "data_dir": config.folder, "revision": config.revision}
    try:
        reader = datasets.load_dataset_builder(path, **options).config
        if isinstance(reader, CsvConfig):
            options |= TSV if reader.sep == "\t" else CSV
    except ValueError:  # no network: `datasets` finds a cached copy by the options that it was read with
        for table_options in (CSV, TSV):
            with suppress(ValueError, TypeError):
                return datasets.load_dataset(path, split=split, streaming=streaming, **options, **table_options)
    return datasets.load_dataset(path, split=split, streaming=streaming, **options)


def _tables_of(rows: Any, names: Sequence[str], where: str, score: str | None) -> Iterator[pa.Table]:
    """Yield the text columns of a Dataset or IterableDataset; its values are not decoded, so none can open a file."""
    for table in rows.with_format("arrow").iter(READ_ROWS):
        if any(name.startswith("__index_level_") for name in table.column_names):  # so pandas names a column without a name
            raise UserError(f"{where}: its rows have more cells than its header")
        yield text_columns(table, names, where, score)


def _sliced(splits: Mapping[str, Callable[[], Iterator[pa.Table]]], value: str) -> Iterator[pa.Table]:
    """Yield the tables of a split, or of slices such as train[:10%]+test."""
    if value in splits:
        yield from splits[value]()
        return
    lengths = {name: sum(map(len, tables())) if name in value else 0 for name, tables in splits.items()}
    for part in datasets.ReadInstruction.from_spec(value).to_absolute(lengths):
        start, end = part.from_, part.to
        for table in splits[part.splitname]():
            yield table.slice(max(0, start), max(0, end - max(0, start)))
            start, end = start - len(table), end - len(table)


class _Split(NamedTuple):
    """A split of a local folder. tables: takes names of columns, what begins error messages, and the column of scores."""

    files: list[Path]  # that hold its rows, or say how they are read
    tables: Callable[[Sequence[str], str, str | None], Iterator[pa.Table]]


def _local_splits(config: DataConfig) -> dict[str, _Split]:
    """Return the splits of a local folder; UserError where it names files outside of it.

    `datasets` finds the files, by their names or the folder's card, and reads the kinds that `KINDS` lacks.
    """
    path = Path(config.path or "")
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):  # `save_to_disk` wrote it
        saved = datasets.load_from_disk(path)
        by_name = {saved.split or "train": saved} if isinstance(saved, Dataset) else saved
        splits = {}
        for name, rows in by_name.items():
            files = [Path(file["filename"]) for file in rows.cache_files]
            described = [json for folder in {path, *(file.parent for file in files)} for json in folder.glob("*.json")]
            splits[str(name)] = _Split([*files, *described], partial(_tables_of, rows))
    else:
        if (card := path / "README.md").is_file():
            configs = str(DatasetCard.load(card).data.to_dict().get("configs"))
            if "://" in configs:  # `datasets` would fetch it
                raise _outside(path, one_line(configs)[:200])
        with tempfile.TemporaryDirectory() as cache:
            builder = datasets.load_dataset_builder(str(path), config.config, data_dir=config.folder, cache_dir=cache)
        delimiter = builder.config.sep if isinstance(builder.config, CsvConfig) else ","
        cards = [card for name in ("README.md", ".huggingface.yaml", "dataset_infos.json") if (card := path / name).is_file()]
        splits = {}
        for name, found in (builder.config.data_files or {}).items():
            files = list(map(Path, found))
            if all(kind_of(file) in KINDS for file in files):
                splits[str(name)] = _Split([*files, *cards], partial(_tables_of_files, files, delimiter))
            else:
                rows = builder.as_streaming_dataset(split=name)
                splits[str(name)] = _Split([*files, *cards], partial(_tables_of, rows))
    roots = [_normal(path), path.resolve(), Path(path, config.folder or "").resolve()]  # the last may be a link
    for file in (file for split in splits.values() for file in split.files):
        if ":/" in str(file) or not any(_normal(file).is_relative_to(root) for root in roots):  # on the web, or elsewhere
            raise _outside(path, file)
    return splits


def _normal(path: Path) -> Path:  # without .., with its links
    return Path(os.path.normpath(path.absolute()))


def _outside(path: Path, file: Path | str) -> UserError:
    return UserError(f"data.path={path}: names {file}, which lies outside of this folder. Copy the file into it, or name it: "
                     "data.path=null data.train=FILE")


def _tables_of_files(files: Sequence[Path], delimiter: str, names: Sequence[str], where: str, score: str | None
                     ) -> Iterator[pa.Table]:
    for file in files:
        yield from read_table(file, names, delimiter, score)
