"""Splits whose training pairs models make: a teacher's translations, and back-translations of monolingual text.

Sequence-level distillation: Kim and Rush 2016, https://arxiv.org/abs/1606.07947, section 3.2. Back-translation: Sennrich et al.
2016, https://arxiv.org/abs/1511.06709, section 3; its tag: Caswell et al. 2019, https://arxiv.org/abs/1906.06442, section 3.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from datasets import Dataset

from translator.config.corpora import as_corpus
from translator.config.data import DataConfig
from translator.config.languages import BACK_TRANSLATED
from translator.config.synthetic import BACK, PARALLEL
from translator.data.cleaning import OVERLAP, READ_ROWS, Counts, HeldOut, Pair, Section, Seen, clean, pair_key, table_of
from translator.data.preparation import (
    cache_key,
    cached_folder,
    checked_file,
    clean_splits,
    counts_of,
    load_report,
    load_rows,
    report_of,
    save_report,
    workers_for,
)
from translator.data.sources import TEXT, write_arrow
from translator.data.table_files import KINDS
from translator.data.text_files import kind_of, read_lines, require_file, sha256_of
from translator.runtime.errors import UserError, one_line

REFUSED, NOT_DRAWN = "refused by the model that translates", "beyond data.monolingual_share"


class Model(Protocol):
    """What translates one side of a pair into the other."""

    name: str
    identity: Sequence[str]  # all that shapes its outputs

    def __call__(self, texts: Sequence[str]) -> Iterator[str | None]:
        """Yield the translation of each text; None for one that is refused."""


@dataclasses.dataclass(frozen=True)
class SyntheticSplits:
    """The splits of some data, with training pairs that models make.

    teacher: translates the training sources. reverse: translates data.monolingual into the source language.
    """

    config: DataConfig
    teacher: Model | None
    reverse: Model | None

    def folder(self) -> Path:
        """Return the cached folder of the splits as text, as `clean_splits` does. Validation and test are unchanged."""
        splits, text = clean_splits(self.config), None
        if self.config.monolingual is not None:
            text = [sha256_of(_require_lines(self.config.monolingual)), self.config.monolingual_share]
        models = [model and list(model.identity) for model in (self.teacher, self.reverse)]
        name = f"__taught-{cache_key(splits.name, self.config.taught, text, models)}"
        return cached_folder(Path(self.config.cache), name, lambda folder: self._fill(splits, folder))

    def _fill(self, splits: Path, folder: Path) -> None:
        report, held_out = load_report(splits), HeldOut(self.config)
        for split in ("validation", "test"):
            shutil.copyfile(checked_file(splits, f"{split}.arrow"), folder / f"{split}.arrow")
            rows = load_rows(splits, split)
            held_out.add(list(zip(rows["source"], rows["target"], strict=True)))
        counts = counts_of(report)
        train = counts["train"]
        if self.reverse is not None:
            train = counts["train"] = {name or PARALLEL: of_corpus for name, of_corpus in train.items()}
            train[BACK] = Counts()
        write_arrow(folder / "train.arrow", TEXT, itertools.chain(
            self._taught(load_rows(splits, "train"), held_out, next(iter(train.values())), folder),
            self._back_translated(held_out, train, folder)))
        save_report(folder, report | report_of(counts))

    def _taught(self, train: Dataset, held_out: HeldOut, counts: Counts, folder: Path) -> Iterator[pa.Table]:
        """Yield the pairs of train with the teacher's targets, the original ones, or both."""
        originals = train.with_format("arrow").iter(READ_ROWS)
        if self.teacher is None:
            yield from originals
            return
        counts.read -= counts.kept  # these are cleaned again, with their new targets
        counts.kept, counts.copied = 0, Counts().copied
        sources = train["source"]
        taught = _translated(sources, self.teacher, counts, is_source=True)
        both = self.config.taught == "both"
        yield from self._cleaned(itertools.chain(originals if both else (), taught), held_out, counts, folder)
        if not counts.kept:
            raise UserError(f"data.teacher: no pair is left to train on: {counts.causes()}. Name another run.")
        counts.note = f"targets by {self.teacher.name}{' beside the original ones' if both else ''}"

    def _back_translated(self, held_out: HeldOut, train: dict[str, Counts], folder: Path) -> Iterator[pa.Table]:
        """Yield pairs of a tagged back-translation and its line of data.monolingual, as their share demands."""
        if self.config.monolingual is None or self.reverse is None:
            return
        counts, share = train[BACK], self.config.monolingual_share
        others = sum(of_corpus.kept for of_corpus in train.values())
        wanted = max(1, round(others * share / (1 - share)))
        lines = _draw(self.config, wanted, held_out, counts)
        pairs = _translated(lines, self.reverse, counts, is_source=False)
        for table in self._cleaned(pairs, held_out, counts, folder):
            tagged = [f"{BACK_TRANSLATED} {source}" for source in table["source"].to_pylist()]
            yield pa.table({"source": pa.array(tagged, pa.string()), "target": table["target"]})
        if not counts.kept:
            raise UserError(f"data.reverse: no back-translation is left: {counts.causes()}. Name another run, or another text.")
        fewer = ", fewer than data.monolingual_share demands" if len(lines) < wanted else ""
        counts.note = f"{counts.kept:,} sources by {self.reverse.name}{fewer}"

    def _cleaned(self, tables: Iterable[pa.Table], held_out: HeldOut, counts: Counts, folder: Path) -> Iterator[pa.Table]:
        """Yield the pairs that cleaning keeps. data.limit was for the pairs from which these are made."""
        scratch = folder / "scratch.arrow"
        write_arrow(scratch, TEXT, tables)
        rows = Dataset.from_file(str(scratch))
        without_limit = dataclasses.replace(self.config, limit=None)
        section = Section(rows, as_corpus(without_limit), counts)
        yield from clean([section], held_out, in_order=workers_for(self.config.workers, len(rows)))
        scratch.unlink()


def _translated(texts: Sequence[str], model: Model, counts: Counts, *, is_source: bool) -> Iterator[pa.Table]:
    """Yield pairs of texts, the sources or the targets, and their translations. Count refusals."""
    outputs = model(texts)
    for first in range(0, len(texts), READ_ROWS):
        pairs: list[Pair] = []
        for text, output in zip(texts[first : first + READ_ROWS], outputs, strict=False):
            if output is None:
                counts.read += 1
                counts.drop(REFUSED, *((text, None) if is_source else (None, text)))
            else:
                pairs.append((text, output) if is_source else (output, text))
        yield table_of(pairs)


def _draw(config: DataConfig, wanted: int, held_out: HeldOut, counts: Counts) -> list[str]:
    """Return this many lines of data.monolingual, or all that are usable. Count the others.

    They have the smallest hashes, so the choice hardly depends on other lines, and not on their order.
    """
    read, dropped = counts.read, sum(counts.dropped.values())
    drawn = [line for _, line in heapq.nsmallest(wanted, _usable_lines(config, held_out, counts))]
    if not drawn:
        raise UserError(f"data.monolingual={config.monolingual}: holds no usable line. Name a text with a sentence a line.")
    if beyond := counts.read - read - (sum(counts.dropped.values()) - dropped) - len(drawn):
        counts.dropped[NOT_DRAWN] = beyond
    counts.read -= len(drawn)  # which cleaning counts, as pairs
    return drawn


def _usable_lines(config: DataConfig, held_out: HeldOut, counts: Counts) -> Iterator[tuple[int, str]]:
    """Yield hash and text of each line of data.monolingual that cleaning might keep as a target, once. Count all."""
    lines, seen = map(one_line, read_lines(Path(config.monolingual or ""))), Seen()
    while batch := list(itertools.islice(lines, READ_ROWS)):
        keys = [pair_key(("", line)) for line in batch]
        new = seen.add(np.array(keys, np.uint64)).tolist()
        for line, key, is_new in zip(batch, keys, new, strict=True):
            counts.read += 1
            if cause := _unusable(line, config, held_out) or ("" if is_new else "duplicate"):
                counts.drop(cause, None, line)
            else:
                yield key, line


def _unusable(line: str, config: DataConfig, held_out: HeldOut) -> str:
    """Return why a line cannot be a target; empty if it can."""
    if not line:
        return "empty"
    if len(line) > config.max_characters:
        return "too long"
    return OVERLAP if held_out.overlaps(("", line)) else ""


def _require_lines(name: str) -> Path:
    """Return the path of a text file; UserError for a missing one, and for a table."""
    path = Path(name)
    require_file(path)
    if kind_of(path) in KINDS:
        raise UserError(f"data.monolingual={name}: is a table. Name a text file, plain or .gz, with a sentence a line.")
    return path
