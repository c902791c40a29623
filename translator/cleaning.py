"""Which sentence pairs are worth training on, and which are held out: every one dropped is counted by its cause (floor 1)."""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from datasets import Dataset

from translator.config import DataConfig
from translator.errors import UserError
from translator.languages import split_tag

READ_ROWS = 10_000
EXAMPLES = 3
# Added to both lengths before their ratio is taken, so that short sentences are not dropped for a word.
RATIO_SLACK = 10
# A held-out split takes at most this share of the pairs it is cut from.
HOLDOUT_SHARE = 0.1

Pair = tuple[str, str]


class Counts:
    """Rows of one split read and kept, and those dropped by cause, with a few examples of each."""

    def __init__(self) -> None:
        self.read = self.kept = 0
        self.note = ""
        self.dropped: Counter[str] = Counter()
        self.examples: dict[str, list[list[str | None]]] = defaultdict(list)

    def drop(self, cause: str, source: Any, target: Any) -> None:
        self.dropped[cause] += 1
        if len(self.examples[cause]) < EXAMPLES:
            texts = (None if text is None else str(text)[:200] for text in (source, target))
            self.examples[cause].append([text and text.encode(errors="backslashreplace").decode() for text in texts])

    def to_json(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.kept, "note": self.note, "dropped": dict(self.dropped),
                "examples": dict(self.examples)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Counts:
        counts = cls()
        counts.read, counts.kept, counts.note = values["read"], values["kept"], values["note"]
        counts.dropped.update(values["dropped"])
        counts.examples.update(values["examples"])
        return counts


class HeldOut:
    """The sentences of validation and test as keys, by side, and the pairs among them that were cut out of train."""

    def __init__(self, config: DataConfig) -> None:
        sources = set[int]()
        several = len(config.directions) > 1  # either side then holds the same sentences
        self._sentences = (sources, sources if several else set[int]())
        self._sides = 1 if config.overlap == "source" else 2
        self._cut: set[int] = set()

    def add(self, pairs: list[Pair]) -> None:
        for side, keys in enumerate(self._sentences):
            keys.update(sentence_key(pair[side]) for pair in pairs)

    def add_cut(self, pairs: list[Pair]) -> None:
        self.add(pairs)
        self._cut.update(map(_pair_key, pairs))

    def shares(self, pair: Pair) -> bool:
        """Whether a sentence of `pair` is held out on its side; of both sides or, by data.overlap, of the source alone."""
        return any(sentence_key(text) in keys for text, keys in list(zip(pair, self._sentences, strict=True))[:self._sides])

    def claims(self, pair: Pair) -> bool:
        """Whether this row of train was cut out. True once a pair: if it is there again, that is another row."""
        if not self._cut or (key := _pair_key(pair)) not in self._cut:
            return False
        self._cut.remove(key)
        return True


def clean(rows: Dataset, config: DataConfig, held_out: HeldOut, counts: Counts) -> Iterator[Pair]:
    """The training pairs worth training on, with single spaces for white space; the others are dropped and counted.

    Rows cut out for validation or test are no part of train: they count neither as read nor as dropped.
    """
    seen: set[int] = set()
    for raw in with_text(rows, counts):
        if held_out.claims(raw):
            counts.read -= 1
            continue
        pair = _single_spaced(raw[0]), _single_spaced(raw[1])
        if max(map(len, pair)) > config.max_characters:
            counts.drop("too long", *pair)
        elif _ratio(*pair) > config.max_ratio:
            counts.drop("length ratio", *pair)
        elif (key := _pair_key(pair)) in seen:
            counts.drop("duplicate", *pair)
        elif held_out.shares(pair):
            counts.drop("overlap with validation or test", *pair)
        elif config.limit is not None and counts.kept >= config.limit:
            counts.drop("beyond data.limit", *pair)
        else:
            seen.add(key)
            counts.kept += 1
            yield pair


def with_text(rows: Dataset, counts: Counts) -> Iterator[Pair]:
    """The rows that have text on both sides, as they are; all rows are counted as read, the others as dropped."""
    for batch in rows.iter(READ_ROWS):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            counts.read += 1
            if not _is_text(source) or not _is_text(target):
                counts.drop("missing or not text", source, target)
            elif not source.strip() or not target.strip():
                counts.drop("empty", source, target)
            else:
                yield source, target


def cut(train: Dataset, config: DataConfig, held_out: HeldOut, split: str, counts: Counts) -> list[Pair]:
    """`data.holdout` pairs of train, as they are, for a split that is missing; none shares a sentence with `held_out`.

    They are those of least hash, so that the choice depends on a pair alone, hardly on the others and not on their order.
    """
    candidates = 0
    least: dict[int, Pair] = {}
    for pair in with_text(train, Counts()):
        if max(map(len, pair)) > config.max_characters or _ratio(*pair) > config.max_ratio:
            continue
        candidates += 1
        if not held_out.shares(pair):
            least[_pair_key(pair)] = pair
            if len(least) > 10 * config.holdout:
                least = dict(heapq.nsmallest(config.holdout, least.items()))
    count = min(config.holdout, int(candidates * HOLDOUT_SHARE), len(least))
    if not count:
        raise UserError(f"data.train: {candidates} clean pairs are too few to cut a {split} split from; set data.{split}")
    counts.read = count
    counts.note = "cut from train" + (f", fewer than data.holdout={config.holdout}" if count < config.holdout else "")
    return [pair for _, pair in heapq.nsmallest(count, least.items())]


def _is_text(value: Any) -> bool:
    """Whether it is text that can be written: JSON can spell half of a surrogate pair, which UTF-8 cannot hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def sentence_key(text: str) -> int:
    """The same number for texts that differ in case, white space, compatible characters or the language's tag alone."""
    return _hash(_single_spaced(unicodedata.normalize("NFKC", split_tag(text)[1]).casefold()))


def _pair_key(pair: Pair) -> int:
    return _hash("\t".join(pair))


def _hash(text: str) -> int:
    # 64 bits: of 370,000 corpora of ten million sentences each, one has two that share a number by chance.
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _single_spaced(text: str) -> str:
    """`text` with a single space for every run of white space, line breaks among it, and none at its ends."""
    return " ".join(text.split())


def _ratio(source: str, target: str) -> float:
    shorter, longer = sorted((len(source), len(target)))
    return (longer + RATIO_SLACK) / (shorter + RATIO_SLACK)
