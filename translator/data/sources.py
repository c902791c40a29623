"""Any translation dataset, in any supported form, as rows of a source and a target."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter
from datasets.table import InMemoryTable

from translator.config.languages import tag_of
from translator.config.options import DataConfig
from translator.data.cleaning import READ_ROWS
from translator.data.loading import as_user_error, load_path
from translator.data.table_files import KINDS, read_table
from translator.data.text_files import kind_of, read_lines
from translator.runtime.errors import UserError

SPLITS = ("train", "validation", "test")
TEXT = Features({"source": Value("string"), "target": Value("string")})


def read(config: DataConfig, split: str) -> Dataset | None:
    """Return the rows of a split, unchanged, in the columns source and target; None if `config` names no such split.

    Values that are not text are null. UserError where the data cannot be found or read, or have no such columns.
    """
    if getattr(config, split) is None:
        return None
    if split == "train" and config.window is not None:
        return next(windows(config))
    Path(config.cache).mkdir(parents=True, exist_ok=True)
    # The mapped file outlives its name, except on NFS, which keeps the folder.
    with tempfile.TemporaryDirectory(prefix="__", dir=config.cache, ignore_cleanup_errors=True) as folder:
        path = Path(folder) / f"{split}.arrow"
        write_arrow(path, TEXT, (_in_directions(table, config) for table in _tables(config, split)))
        rows = Dataset.from_file(str(path))
    if not len(rows):
        raise UserError(f"{_where(config, split)}: holds no rows")
    return rows


def windows(config: DataConfig, start: int = 0) -> Iterator[Dataset]:
    """Yield the rows of train, `data.window` at a time, without end, from window number `start` on.

    The last window of a pass also has the rest of its rows. After it the first comes again.
    """
    assert config.window is not None
    if not isinstance(config.train, str):  # refuse files of unequal length before training on shifted pairs
        for _ in _read_pairs(config.train, _where(config, "train")):
            pass
    number = 0
    while True:
        first_of_pass = number
        for table in _in_windows(_tables(config, "train"), config.window):
            if number >= start:
                yield Dataset(InMemoryTable(_in_directions(table, config)))
            number += 1
        if number == first_of_pass:
            raise UserError(f"{_where(config, 'train')}: holds no rows")
        if number < start:  # after the first pass: skip the passes before the one that holds `start`
            number += (start - number) // number * number


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


def _where(config: DataConfig, split: str) -> str:
    """Return the options that name a split."""
    value = getattr(config, split)
    option = f"data.{split}={value if isinstance(value, str) else ','.join(value)}"
    return option if config.path is None else f"data.path={config.path} {option}"


def _tables(config: DataConfig, split: str) -> Iterator[pa.Table]:
    """Yield a split's rows as tables of strings with a column for each language."""
    value = getattr(config, split)
    names = list(dict.fromkeys(itertools.chain(*config.directions)))
    streaming = split == "train" and config.window is not None
    where = _where(config, split)
    with as_user_error(where):
        if config.path is not None:
            yield from load_path(config, value, names, where, streaming=streaming)
        elif isinstance(value, str):
            yield from read_table(Path(value), names)
        else:
            yield from _read_pairs(value, where)


def _in_directions(table: pa.Table, config: DataConfig) -> pa.Table:
    """Return source and target: each row in all directions, with the tag of the target language where there is a choice."""
    if len(config.directions) == 1:
        return table.rename_columns(["source", "target"])
    sources, targets = list[str | None](), list[str | None]()
    for row in table.to_pylist():
        for source, target in config.directions:
            tagged = config.tags and row[source] is not None and row[source].strip()
            sources.append(f"{tag_of(target)}{row[source]}" if tagged else row[source])
            targets.append(row[target])
    return pa.table({"source": pa.array(sources, pa.string()), "target": pa.array(targets, pa.string())})


def _read_pairs(paths: Sequence[str], where: str) -> Iterator[pa.Table]:
    """Yield the lines of a file of sources and a file of targets; UserError where one has more lines than the other."""
    if len(paths) != 2:
        raise UserError(f"{where}: expected one file, or two as [SOURCES,TARGETS]")
    for path in paths:
        if kind_of(Path(path)) in KINDS:
            raise UserError(f"{where}: {path} is a table. Name one table, or two text files with a sentence a line")
    files = [read_lines(Path(path)) for path in paths]
    counts = [0, 0]
    while any(batch := [list(islice(file, READ_ROWS)) for file in files]):
        counts = [count + len(lines) for count, lines in zip(counts, batch, strict=True)]
        if counts[0] != counts[1]:
            counts = [count + sum(1 for _ in file) for count, file in zip(counts, files, strict=True)]
            raise UserError(f"{paths[0]} has {counts[0]:,} lines, {paths[1]} {counts[1]:,}: they must be pairs")
        yield pa.table([pa.array(lines, pa.string()) for lines in batch], ["source", "target"])
