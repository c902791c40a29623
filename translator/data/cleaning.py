"""Drop pairs that are not worth training on, cut validation and test from train, and count every row by cause."""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset

from translator.config.corpora import CorpusConfig
from translator.config.data import DataConfig
from translator.config.languages import split_tag
from translator.data.filters import Pair, is_copy, noise
from translator.runtime.errors import UserError, one_line
from translator.runtime.process_pool import InOrder, alone

READ_ROWS = 10_000
EXAMPLES = 10
OVERLAP = "overlap with validation or test"

Rows = Mapping[str, Sequence[Any]]  # the columns source and target
Chosen = dict[int, tuple[int, Pair]]  # by its hash, a pair and the number of its section


@dataclass
class Counts:
    """Rows of a split by what became of them, with a few examples."""

    read: int = 0
    kept: int = 0
    note: str = ""
    dropped: dict[str, int] = field(default_factory=dict)  # by cause
    examples: dict[str, list[list[str | None]]] = field(default_factory=dict)  # by cause
    copied: dict[str, Any] = field(default_factory=lambda: {"count": 0, "examples": []})  # pairs of equal sides, kept or not

    def drop(self, cause: str, source: str | None, target: str | None) -> None:
        self.dropped[cause] = self.dropped.get(cause, 0) + 1
        _add_example(self.examples.setdefault(cause, []), source, target)

    def note_copy(self, source: str, target: str) -> None:
        if is_copy(source, target):
            self.copied["count"] += 1
            _add_example(self.copied["examples"], source, target)

    def causes(self) -> str:
        return ", ".join(f"{count:,} {cause}" for cause, count in self.dropped.items())

    def add(self, other: Counts) -> None:
        """Add the counts of other rows of the same split."""
        self.read, self.kept = self.read + other.read, self.kept + other.kept
        self.note = ", ".join(dict.fromkeys(filter(None, [self.note, other.note])))
        for cause, count in other.dropped.items():
            self.dropped[cause] = self.dropped.get(cause, 0) + count
            self.examples[cause] = [*self.examples.get(cause, []), *other.examples.get(cause, [])][:EXAMPLES]
        self.copied = {"count": self.copied["count"] + other.copied["count"],
                       "examples": [*self.copied["examples"], *other.copied["examples"]][:EXAMPLES]}


def _add_example(examples: list[list[str | None]], source: str | None, target: str | None) -> None:
    """Add the beginning of a row, unless there are examples enough."""
    if len(examples) < EXAMPLES:
        examples.append([text and text[:200] for text in (source, target)])


def same_sentence(text: str) -> str:
    """Normalise a sentence: equal for texts that differ only in case, white space, compatible characters or language tag."""
    return one_line(unicodedata.normalize("NFKC", split_tag(text)[1]).casefold())


class HeldOut:
    """The sentences of validation and test, by side, and the pairs among them that were cut from train."""

    def __init__(self, config: DataConfig) -> None:
        sources = set[str]()
        # Of several directions, either side holds the same sentences.
        self._sentences = (sources, sources if len(config.directions) > 1 else set[str]())
        self._compared_sides = 1 if config.overlap == "source" else 2
        self.cut: set[Pair] = set()

    def add(self, pairs: list[Pair]) -> None:
        for side, sentences in enumerate(self._sentences):
            sentences.update(same_sentence(pair[side]) for pair in pairs)

    def add_cut(self, pairs: list[Pair]) -> None:
        self.add(pairs)
        self.cut.update(pairs)

    def overlaps(self, pair: Pair) -> bool:
        """Return whether a sentence of a pair is held out, on the sides that data.overlap compares."""
        return any(same_sentence(pair[side]) in self._sentences[side] for side in range(self._compared_sides))


class Seen:
    """A set of 64-bit numbers in 8 bytes each: sorted arrays, each more than twice as long as the next."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def add(self, numbers: np.ndarray) -> np.ndarray:
        """Add numbers (N,). Return which of them are met for the first time (N,)."""
        new = np.zeros(len(numbers), bool)
        new[np.unique(numbers, return_index=True)[1]] = True
        for array in self._arrays:
            new &= array.take(array.searchsorted(numbers), mode="clip") != numbers
        added = np.sort(numbers[new])
        while self._arrays and len(self._arrays[-1]) <= 2 * len(added):
            added = np.sort(np.concatenate([self._arrays.pop(), added]), kind="stable")  # merges two sorted arrays
        if len(added):
            self._arrays.append(added)
        return new


class Section(NamedTuple):
    """The rows of one corpus, and what becomes of them."""

    rows: Dataset
    config: CorpusConfig
    counts: Counts


def in_batches(tables: Sequence[Dataset]) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each table, at most `READ_ROWS` together, with the number of the table."""
    return chain.from_iterable(zip(repeat(number), rows.iter(READ_ROWS)) for number, rows in enumerate(tables))


@dataclass(frozen=True)
class FilteredRows:
    """Rows of train, each checked on its own, without knowledge of the others."""

    section: int
    read: int
    pairs: pa.Table  # that may be kept, with single spaces
    keys: np.ndarray  # equal for equal pairs
    dropped: list[tuple[str, Any, Any]]  # cause, source, target
    cut: list[Pair]  # equal to a pair that was cut out
    copies: list[Pair]  # among all rows that were not cut


@dataclass(frozen=True)
class RowFilter:
    """Check rows of train, in this process or in a worker."""

    configs: Sequence[CorpusConfig]  # of the sections
    held_out: HeldOut

    def __call__(self, numbered: tuple[int, Rows]) -> FilteredRows:
        """Sort rows of a section into those to keep, to drop and to leave to validation or test."""
        section, rows = numbered
        config = self.configs[section]
        pairs, cut, copies, dropped = list[Pair](), list[Pair](), list[Pair](), list[tuple[str, Any, Any]]()
        scores = rows.get("score", repeat(None))
        for raw, score in zip(zip(rows["source"], rows["target"], strict=True), scores):  # noqa: B905 one is endless
            if cause := missing_text(*raw):
                dropped.append((cause, *raw))
            elif raw in self.held_out.cut:
                cut.append(raw)
            else:
                pair = one_line(raw[0]), one_line(raw[1])
                if is_copy(*pair):
                    copies.append(pair)
                overlap = OVERLAP if self.held_out.overlaps(pair) else ""
                if cause := _scored_low(score, config) or _misshapen(pair, config) or overlap:
                    dropped.append((cause, *pair))
                else:
                    pairs.append(pair)
        causes = noise(pairs, config)
        dropped += [(cause, *pair) for cause, pair in zip(causes, pairs, strict=True) if cause]
        pairs = [pair for cause, pair in zip(causes, pairs, strict=True) if not cause]
        keys = np.fromiter(map(pair_key, pairs), np.uint64, len(pairs))
        return FilteredRows(section, len(rows["source"]), table_of(pairs), keys, dropped, cut, copies)


def clean(sections: Sequence[Section], held_out: HeldOut, *, in_order: InOrder = alone) -> Iterator[pa.Table]:
    """Yield the training pairs to keep, with single spaces, section after section. Count the others by cause.

    Of equal pairs, the first section that has one keeps it. Rows that were cut for validation or test count neither as read
    nor as dropped.
    """
    seen, unclaimed = Seen(), set(held_out.cut)
    tables, configs, _ = zip(*sections, strict=True)
    for filtered in in_order(partial(RowFilter, configs, held_out), in_batches(tables)):
        _, config, counts = sections[filtered.section]
        counts.read += filtered.read
        for dropped in filtered.dropped:
            counts.drop(*dropped)
        for copy in filtered.copies:
            counts.note_copy(*copy)
        for pair in filtered.cut:
            if pair in unclaimed:
                unclaimed.remove(pair)
                counts.read -= 1
            else:
                counts.drop(OVERLAP, *pair)
                counts.note_copy(*pair)
        new = seen.add(filtered.keys)
        for duplicate in filtered.pairs.filter(pa.array(~new)).to_pylist():
            counts.drop("duplicate", **duplicate)
        pairs = filtered.pairs.filter(pa.array(new))
        kept = pairs if config.limit is None else pairs.slice(0, config.limit - counts.kept)
        for beyond in pairs.slice(len(kept)).to_pylist():
            counts.drop("beyond data.limit", **beyond)
        counts.kept += len(kept)
        yield kept


def with_text(rows: Dataset, counts: Counts) -> Iterator[Pair]:
    """Yield the rows that have text on both sides, unchanged. Count the others as dropped."""
    for batch in rows.iter(READ_ROWS):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            counts.read += 1
            if cause := missing_text(source, target):
                counts.drop(cause, source, target)
            else:
                counts.note_copy(source, target)
                yield source, target


def _well_scored(section: Section) -> Dataset:
    """Return the rows of a section without those whose score is too low."""
    if section.config.min_score is None:
        return section.rows
    scores = section.rows["score"]
    return section.rows.select([row for row, score in enumerate(scores) if not _scored_low(score, section.config)])


def cut_split(train: Sequence[Section], config: DataConfig, held_out: HeldOut, split: str, counts: Counts) -> list[Pair]:
    """Return `data.holdout` pairs of train, at most a tenth, unchanged, as a split.

    None shares a sentence with `held_out`, and each passes the filters of its corpus. They have the smallest hashes, so the
    choice hardly depends on other pairs, and not on their order.
    """
    candidates, largest, rows = 0, 2**64, Counts()
    chosen: Chosen = {}
    for number, section in enumerate(train):
        for pair in with_text(_well_scored(section), rows):
            if cause := _misshapen(pair, section.config):
                rows.drop(cause, *pair)
                continue
            candidates += 1
            if (key := pair_key(pair)) <= largest and not held_out.overlaps(pair):
                chosen[key] = number, pair
                if len(chosen) > 10 * config.holdout:
                    chosen = _smallest(chosen, train, config.holdout)
                    largest = max(chosen) if len(chosen) == config.holdout else largest
    chosen = _smallest(chosen, train, config.holdout)
    count = min(config.holdout, int(candidates * 0.1), len(chosen))
    if not count:
        causes = f" ({rows.causes()})" if rows.dropped else ""
        raise UserError(f"data.train: {candidates:,} of {rows.read:,} rows are clean pairs{causes}, too few to cut a {split} "
                        "split from, or all share a sentence with another split. Add pairs, name other columns or limits, set "
                        f"data.{split}, or, where many sources have one target, data.overlap=source")
    counts.read = count
    counts.note = "cut from train" + (f", fewer than data.holdout={config.holdout}" if count < config.holdout else "")
    pairs = [pair for _, pair in chosen.values()][:count]
    for pair in pairs:
        counts.note_copy(*pair)
    return pairs


def _smallest(chosen: Chosen, train: Sequence[Section], count: int) -> Chosen:
    """Return the pairs with the smallest keys that no rule of their corpora drops, in their order."""
    kept = list[tuple[int, tuple[int, Pair]]]()
    for number, section in enumerate(train):
        own = [item for item in chosen.items() if item[1][0] == number]
        causes = noise([(one_line(source), one_line(target)) for _, (_, (source, target)) in own], section.config)
        kept += [item for item, cause in zip(own, causes, strict=True) if not cause]
    return dict(heapq.nsmallest(count, kept))


def missing_text(source: str | None, target: str | None) -> str:
    """Return why a row lacks text on a side; empty if it has text on both."""
    if source is None or target is None:
        return "missing or not text"
    return "" if source.strip() and target.strip() else "empty"


def table_of(pairs: Sequence[Pair]) -> pa.Table:
    """Return pairs as a table of source and target."""
    columns = zip(*pairs, strict=True) if pairs else ([], [])
    return pa.table([pa.array(texts, pa.string()) for texts in columns], ["source", "target"])


def pair_key(pair: Pair) -> int:
    """Return a hash that is equal for equal pairs."""
    # 64 bits: of 370,000 corpora of ten million pairs each, one has two pairs with equal keys.
    return int.from_bytes(hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest(), "big")


def _scored_low(score: str | None, config: DataConfig) -> str:
    """Return that a pair's score is too low, or no number; empty if it is not, or there are no scores."""
    if config.min_score is None:
        return ""
    try:
        return "" if float(score or "") >= config.min_score else "low score"
    except ValueError:
        return "low score"


def _misshapen(pair: Pair, config: DataConfig) -> str:
    """Return what is wrong with the lengths of a pair, without its language tag; empty if nothing is."""
    source, target = split_tag(pair[0])[1] if config.tags or config.context else pair[0], pair[1]
    shorter, longer = sorted((len(source), len(target)))
    if longer > config.max_characters:
        return "too long"
    ratio = (longer + 10) / (shorter + 10)  # so that short sentences are not dropped for a word
    return "length ratio" if ratio > config.max_ratio else ""
