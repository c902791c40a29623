"""Which sentence pairs are worth training on, and which are held out: every one dropped is counted by its cause."""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from translator.config.languages import split_tag
from translator.config.options import DataConfig
from translator.runtime.errors import UserError, one_line
from translator.runtime.process_pool import InOrder, alone

READ_ROWS = 10_000
EXAMPLES = 3
# Added to both lengths before their ratio is taken, so that short sentences are not dropped for a word.
RATIO_SLACK = 10
# A held-out split takes at most this share of the pairs it is cut from.
HOLDOUT_SHARE = 0.1
OVERLAP = "overlap with validation or test"

Pair = tuple[str, str]
Rows = Mapping[str, Sequence[Any]]  # the columns source and target


class Counts:
    """Rows of one split read and kept, those dropped by cause, and copies, with a few examples of each.

    A copy is a row whose target is its source, dropped or not.
    """

    def __init__(self) -> None:
        self.read = self.kept = self.copied = 0
        self.note = ""
        self.dropped: Counter[str] = Counter()
        self.examples: dict[str, list[list[str | None]]] = defaultdict(list)
        self.copies: list[list[str | None]] = []  # examples

    def drop(self, cause: str, source: Any, target: Any) -> None:
        self.dropped[cause] += 1
        if len(self.examples[cause]) < EXAMPLES:
            self.examples[cause].append(_example(source, target))

    def causes(self) -> str:
        """Return how many rows were dropped, by cause, as text."""
        return ", ".join(f"{count:,} {cause}" for cause, count in self.dropped.items())

    def note_copy(self, source: str, target: str) -> None:
        """Count a pair if it is a copy."""
        if is_copy(source, target):
            self.copied += 1
            if len(self.copies) < EXAMPLES:
                self.copies.append(_example(source, target))

    def to_json(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.kept, "note": self.note, "dropped": dict(self.dropped),
                "examples": dict(self.examples), "copied": {"count": self.copied, "examples": self.copies}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Counts:
        counts = cls()
        counts.read, counts.kept, counts.note = values["read"], values["kept"], values["note"]
        counts.dropped.update(values["dropped"])
        counts.examples.update(values["examples"])
        counts.copied, counts.copies = values["copied"]["count"], values["copied"]["examples"]
        return counts


def _example(source: Any, target: Any) -> list[str | None]:
    texts = (None if text is None else str(text)[:200] for text in (source, target))
    return [text and text.encode(errors="backslashreplace").decode() for text in texts]


def is_copy(source: str, target: str) -> bool:
    """Return whether two texts differ at most in case, white space and the language's tag."""
    return one_line(split_tag(source)[1]).casefold() == one_line(target).casefold()


class HeldOut:
    """The sentences of validation and test, by side, and the pairs among them that were cut out of train."""

    def __init__(self, config: DataConfig) -> None:
        sources = set[str]()
        several = len(config.directions) > 1  # either side then holds the same sentences
        self._sentences = (sources, sources if several else set[str]())
        self._sides = 1 if config.overlap == "source" else 2
        self.cut: set[Pair] = set()

    def add(self, pairs: list[Pair]) -> None:
        for side, sentences in enumerate(self._sentences):
            sentences.update(same_sentence(pair[side]) for pair in pairs)

    def add_cut(self, pairs: list[Pair]) -> None:
        self.add(pairs)
        self.cut.update(pairs)

    def shares(self, pair: Pair) -> bool:
        """Whether a sentence of `pair` is held out on its side; of both sides or, by data.overlap, of the source alone."""
        return any(same_sentence(pair[side]) in self._sentences[side] for side in range(self._sides))


class Seen:
    """Numbers met before, 8 bytes each: in sorted arrays, of which each is more than twice as long as the next."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def add(self, numbers: np.ndarray) -> np.ndarray:
        """Whether each of the numbers is met for the first time."""
        new = np.zeros(len(numbers), bool)
        new[np.unique(numbers, return_index=True)[1]] = True
        for array in self._arrays:
            new &= array.take(array.searchsorted(numbers), mode="clip") != numbers
        added = np.sort(numbers[new])
        while self._arrays and len(self._arrays[-1]) <= 2 * len(added):
            added = np.sort(np.concatenate([self._arrays.pop(), added]), kind="stable")  # a merge of two
        if len(added):
            self._arrays.append(added)
        return new


@dataclass(frozen=True)
class Judged:
    """Some rows of train, each looked at by itself."""

    read: int
    pairs: pa.Table  # with single spaces
    keys: np.ndarray  # of these pairs: equal for equal ones
    dropped: list[tuple[str, Any, Any]]  # the other rows, with the cause first
    cut: list[Pair]  # out of train, if it is the first of its like
    copies: list[Pair]  # of the rows that were not cut


class Judge:
    """Looks at rows of train, in this process or in others."""

    def __init__(self, config: DataConfig, held_out: HeldOut) -> None:
        self.config = config
        self.held_out = held_out

    def __call__(self, rows: Rows) -> Judged:
        pairs, cut, copies, dropped = list[Pair](), list[Pair](), list[Pair](), list[tuple[str, Any, Any]]()
        for raw in zip(rows["source"], rows["target"], strict=True):
            if cause := textless(*raw):
                dropped.append((cause, *raw))
            elif raw in self.held_out.cut:
                cut.append(raw)
            else:
                pair = one_line(raw[0]), one_line(raw[1])
                if is_copy(*pair):
                    copies.append(pair)
                if cause := self._cause(pair):
                    dropped.append((cause, *pair))
                else:
                    pairs.append(pair)
        keys = np.fromiter(map(_pair_key, pairs), np.uint64, len(pairs))
        return Judged(len(rows["source"]), table_of(pairs), keys, dropped, cut, copies)

    def _cause(self, pair: Pair) -> str:
        """Why a pair is not worth training on; empty where it is."""
        return _misshapen(pair, self.config) or (OVERLAP if self.held_out.shares(pair) else "")


def clean(
    rows: Dataset, config: DataConfig, held_out: HeldOut, counts: Counts, *, in_order: InOrder = alone
) -> Iterator[pa.Table]:
    """The training pairs worth training on, with single spaces for white space; the others are dropped and counted.

    Rows cut out for validation or test are no part of train: they count neither as read nor as dropped. `in_order`: who looks
    at the rows, which changes nothing else.
    """
    seen, unclaimed = Seen(), set(held_out.cut)
    for judged in in_order(partial(Judge, config, held_out), rows.iter(READ_ROWS)):
        counts.read += judged.read
        for dropped in judged.dropped:
            counts.drop(*dropped)
        for copy in judged.copies:
            counts.note_copy(*copy)
        for pair in judged.cut:
            if pair in unclaimed:
                unclaimed.remove(pair)
                counts.read -= 1
            else:
                counts.drop(OVERLAP, *pair)
                counts.note_copy(*pair)
        new = seen.add(judged.keys)
        for duplicate in judged.pairs.filter(pa.array(~new)).to_pylist():
            counts.drop("duplicate", **duplicate)
        kept = judged.pairs.filter(pa.array(new))
        within = kept if config.limit is None else kept.slice(0, config.limit - counts.kept)
        for beyond in kept.slice(len(within)).to_pylist():
            counts.drop("beyond data.limit", **beyond)
        counts.kept += len(within)
        yield within


def with_text(rows: Dataset, counts: Counts) -> Iterator[Pair]:
    """The rows that have text on both sides, as they are; all rows are counted as read, the others as dropped."""
    for batch in rows.iter(READ_ROWS):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            counts.read += 1
            if cause := textless(source, target):
                counts.drop(cause, source, target)
            else:
                counts.note_copy(source, target)
                yield source, target


def cut(train: Dataset, config: DataConfig, held_out: HeldOut, split: str, counts: Counts) -> list[Pair]:
    """`data.holdout` pairs of train, as they are, for a split that is missing; none shares a sentence with `held_out`.

    They are those of least hash, so that the choice depends on a pair alone, hardly on the others and not on their order.
    """
    candidates, largest, rows = 0, 2**64, Counts()
    least: dict[int, Pair] = {}
    for pair in with_text(train, rows):
        if cause := _misshapen(pair, config):
            rows.drop(cause, *pair)
            continue
        candidates += 1
        if (key := _pair_key(pair)) <= largest and not held_out.shares(pair):
            least[key] = pair
            if len(least) > 10 * config.holdout:
                least = dict(heapq.nsmallest(config.holdout, least.items()))
                largest = max(least)
    count = min(config.holdout, int(candidates * HOLDOUT_SHARE), len(least))
    if candidates and not least:  # all were in the other one
        raise UserError(
            f"data.train: each of {candidates} clean pairs shares a sentence with the split that is held out already; set "
            f"data.{split}, or, where many sources have one target, data.overlap=source")
    if not count:
        causes = f" ({rows.causes()})" if rows.dropped else ""
        remedy = f"Add pairs, or set data.{split}" if candidates else "Correct the data, or name other columns or limits"
        raise UserError(
            f"data.train: {candidates:,} of {rows.read:,} rows are clean pairs{causes}, too few to cut a {split} split from. "
            f"{remedy}")
    counts.read = count
    counts.note = "cut from train" + (f", fewer than data.holdout={config.holdout}" if count < config.holdout else "")
    pairs = [pair for _, pair in heapq.nsmallest(count, least.items())]
    for pair in pairs:
        counts.note_copy(*pair)
    return pairs


def is_text(value: Any) -> bool:
    """Whether it is text that can be written: JSON can spell half of a surrogate pair, which UTF-8 cannot hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def textless(source: Any, target: Any) -> str:
    """Why a row has no text on both sides; empty where it has."""
    if not is_text(source) or not is_text(target):
        return "missing or not text"
    return "" if source.strip() and target.strip() else "empty"


def table_of(pairs: Sequence[Pair]) -> pa.Table:
    """The columns source and target."""
    columns = zip(*pairs, strict=True) if pairs else ([], [])
    return pa.table([pa.array(texts, pa.string()) for texts in columns], ["source", "target"])


def same_sentence(text: str) -> str:
    """The same text for those that differ in case, white space, compatible characters or the language's tag alone."""
    return one_line(unicodedata.normalize("NFKC", split_tag(text)[1]).casefold())


def _pair_key(pair: Pair) -> int:
    # 64 bits: of 370,000 corpora of ten million pairs each, one has two that share a number by chance.
    return int.from_bytes(hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest(), "big")


def _misshapen(pair: Pair, config: DataConfig) -> str:
    """What is wrong with the lengths of a pair's texts, the source's without its tag; empty where nothing is."""
    source, target = split_tag(pair[0])[1] if config.tags else pair[0], pair[1]
    if max(len(source), len(target)) > config.max_characters:
        return "too long"
    return "length ratio" if _ratio(source, target) > config.max_ratio else ""


def _ratio(source: str, target: str) -> float:
    shorter, longer = sorted((len(source), len(target)))
    return (longer + RATIO_SLACK) / (shorter + RATIO_SLACK)
