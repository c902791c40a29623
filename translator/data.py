"""Hugging Face dataset -> cleaned, counted, tokenised, cached Arrow (floor 2)."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter

from translator.config import DataConfig, TokenizerConfig
from translator.errors import UserError
from translator.sources import SPLITS, identity, read
from translator.tokenizer import Tokenizer, train_tokenizer

# Part of every cache key: raise it when what this module writes changes.
FORMAT = 1
READ_ROWS = 10_000
EXAMPLES = 3
# Added to both lengths before their ratio is taken, so that short sentences are not dropped for a word.
RATIO_SLACK = 10
# A held-out split takes at most this share of the rows it is cut from.
HOLDOUT_SHARE = 0.1

TEXT = Features({"source": Value("string"), "target": Value("string")})
TOKENS = Features({
    **TEXT, "source_ids": List(Value("int32")), "target_ids": List(Value("int32")), "source_length": Value("int32"),
    "target_length": Value("int32")})

Pair = tuple[str, str]


@dataclass(frozen=True)
class Corpus:
    """Tokenised splits with the columns source, target, source_ids, target_ids, source_length, target_length."""

    train: Dataset
    validation: Dataset
    test: Dataset
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer  # the same object where the vocabulary is joint
    report: dict[str, Any]


def prepare(config: DataConfig, tokenizer: TokenizerConfig, *, max_tokens: int) -> Corpus:
    """Read, clean, train the tokenizer on the training split alone, tokenise; or take all that from the cache.

    A training pair of which a side has more than `max_tokens` tokens is dropped and counted.
    """
    splits = _clean_splits(config)
    key = _key(splits.name, dataclasses.asdict(tokenizer), max_tokens)
    folder = _cached(Path(config.cache), f"tokens-{key}", lambda new: _tokenise(splits, tokenizer, max_tokens, new))
    source = Tokenizer.load(folder / "source.model")
    target = source if tokenizer.joint else Tokenizer.load(folder / "target.model")
    train, validation, test = (Dataset.from_file(str(folder / f"{split}.arrow")) for split in SPLITS)
    return Corpus(train, validation, test, source, target, _load_report(folder))


def load_split(config: DataConfig, split: str) -> Dataset:
    """The texts of a split, in the columns source and target: train cleaned, validation and test as they are."""
    return Dataset.from_file(str(_clean_splits(config) / f"{split}.arrow"))


def describe(report: dict[str, Any]) -> str:
    """What was read, kept and dropped, in a line a split."""
    lines = []
    for split, counts in report["splits"].items():
        causes = ", ".join(f"{count:,} {cause}" for cause, count in counts["dropped"].items())
        dropped = f"; dropped: {causes}" if causes else ""
        lines.append(f"{split:10} {counts['kept']:,} of {counts['read']:,} pairs{dropped}")
    return "\n".join(lines)


class Counts:
    """Rows of one split read and kept, and those dropped by cause, with a few examples of each."""

    def __init__(self) -> None:
        self.read = self.kept = 0
        self.dropped: Counter[str] = Counter()
        self.examples: dict[str, list[list[Any]]] = defaultdict(list)

    def drop(self, cause: str, source: Any, target: Any) -> None:
        self.dropped[cause] += 1
        if len(self.examples[cause]) < EXAMPLES:
            self.examples[cause].append([str(source)[:200], str(target)[:200]])

    def as_json(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped), "examples": dict(self.examples)}


# Cleaning


def _clean_splits(config: DataConfig) -> Path:
    """The cached folder of this data's splits as text."""
    shaped_by = {k: v for k, v in dataclasses.asdict(config).items() if k != "cache"}
    name = f"text-{_key(shaped_by, identity(config))}"
    return _cached(Path(config.cache), name, lambda new: _write_splits(config, new))


def _write_splits(config: DataConfig, folder: Path) -> None:
    """Write train.arrow, validation.arrow and test.arrow, with no sentence of either side in two of them."""
    counts = {split: Counts() for split in SPLITS}
    rows = {split: read(config, split) for split in SPLITS}
    train = rows["train"]
    assert train is not None  # DataConfig requires it
    held_out: dict[str, list[Pair]] = {}
    taken = (set[int](), set[int]())  # keys of the sources and targets of test, then of validation too
    for split in ("test", "validation"):
        given = rows[split]
        if given is not None:
            held_out[split] = list(_with_text(given, counts[split]))
            counts[split].kept = len(held_out[split])
            if not held_out[split]:
                raise UserError(f"data.{split}: every row lacks text on a side")
        else:
            held_out[split] = _cut(train, config, taken, split)
            counts[split].read = counts[split].kept = len(held_out[split])
        for side in (0, 1):
            taken[side].update(_sentence_key(pair[side]) for pair in held_out[split])
    for split, pairs in held_out.items():
        _write(folder / f"{split}.arrow", TEXT, _chunks(iter(pairs)))
    cut = {_sentence_key("\t".join(p)) for split, pairs in held_out.items() if rows[split] is None for p in pairs}
    _write(folder / "train.arrow", TEXT, _chunks(_clean(train, config, taken, cut, counts["train"])))
    if not counts["train"].kept:
        raise UserError(f"data.train: no pair is left after cleaning ({dict(counts['train'].dropped)})")
    _save_report(folder, {"splits": {split: counts[split].as_json() for split in SPLITS}})


def _clean(
    rows: Dataset, config: DataConfig, held_out: tuple[set[int], set[int]], cut: set[int], counts: Counts
) -> Iterator[Pair]:
    """The training pairs worth training on; every other one is counted by the cause it was dropped for.

    Pairs cut out for validation or test (`cut`) are not part of train, so they count neither as read nor as dropped.
    """
    seen: set[int] = set()
    for source, target in _with_text(rows, counts):
        pair = " ".join(source.split()), " ".join(target.split())
        key = _sentence_key("\t".join(pair))
        if key in cut:
            counts.read -= 1
        elif max(map(len, pair)) > config.max_characters:
            counts.drop("too long", *pair)
        elif _ratio(*pair) > config.max_ratio:
            counts.drop("length ratio", *pair)
        elif (exact := _hash("\t".join(pair))) in seen:
            counts.drop("duplicate", *pair)
        elif any(_sentence_key(text) in keys for text, keys in zip(pair, held_out, strict=True)):
            counts.drop("overlap with validation or test", *pair)
        elif config.limit is not None and counts.kept >= config.limit:
            counts.drop("beyond data.limit", *pair)
        else:
            seen.add(exact)
            counts.kept += 1
            yield pair


def _with_text(rows: Dataset, counts: Counts) -> Iterator[Pair]:
    """The rows that have text on both sides, counted as read with those that have not."""
    for batch in rows.iter(READ_ROWS):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            counts.read += 1
            if not isinstance(source, str) or not isinstance(target, str):
                counts.drop("missing or not text", source, target)
            elif not source.strip() or not target.strip():
                counts.drop("empty", source, target)
            else:
                yield source, target


def _cut(train: Dataset, config: DataConfig, taken: tuple[set[int], set[int]], split: str) -> list[Pair]:
    """`data.holdout` pairs of train for a split that is missing, with neither side among the sentences `taken`.

    They are those of least hash, so that the choice depends on a pair alone, hardly on the others and not on their order.
    """
    candidates = (
        (_hash(f"{source}\t{target}"), (source, target)) for source, target in _with_text(train, Counts())
        if max(len(source), len(target)) <= config.max_characters and _ratio(source, target) <= config.max_ratio
        and _sentence_key(source) not in taken[0] and _sentence_key(target) not in taken[1])
    count = min(config.holdout, int(len(train) * HOLDOUT_SHARE))
    if not count:
        raise UserError(f"data.train: {len(train)} pairs are too few to cut a {split} split from; set data.{split}")
    # Twice as many as wanted, since a pair may be there more than once.
    unique = dict(heapq.nsmallest(2 * count, candidates))
    return list(unique.values())[:count]


def _ratio(source: str, target: str) -> float:
    shorter, longer = sorted((len(source), len(target)))
    return (longer + RATIO_SLACK) / (shorter + RATIO_SLACK)


def _sentence_key(text: str) -> int:
    """The same number for texts that differ in case, white space or compatible characters alone."""
    return _hash(" ".join(unicodedata.normalize("NFKC", text).casefold().split()))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


# Tokenising


def _tokenise(splits: Path, config: TokenizerConfig, max_tokens: int, folder: Path) -> None:
    """Train the tokenizers on train.arrow of `splits` and write every split with its ids."""
    train = Dataset.from_file(str(splits / "train.arrow"))
    if config.joint:
        source = target = train_tokenizer(_texts(train, "source", "target"), config)
    else:
        source = train_tokenizer(_texts(train, "source"), config)
        target = train_tokenizer(_texts(train, "target"), config)
    source.save(folder / "source.model")
    target.save(folder / "target.model")
    report = _load_report(splits)
    for split in SPLITS:
        rows = Dataset.from_file(str(splits / f"{split}.arrow"))
        limit = max_tokens if split == "train" else None
        _write(folder / f"{split}.arrow", TOKENS, _encoded(rows, source, target, limit, report["splits"][split]))
    if not report["splits"]["train"]["kept"]:
        raise UserError(f"train.batch_tokens={max_tokens} is less than the tokens of every training pair")
    _save_report(folder, report)


def _encoded(
    rows: Dataset, source: Tokenizer, target: Tokenizer, max_tokens: int | None, counts: dict[str, Any]
) -> Iterator[dict[str, list[Any]]]:
    """Batches of rows with their ids and lengths; those over `max_tokens` are counted in `counts`."""
    too_long = "more tokens than train.batch_tokens"
    for batch in rows.iter(READ_ROWS):
        columns: dict[str, list[Any]] = {name: [] for name in TOKENS}
        for text, other, ids, other_ids in zip(
                batch["source"], batch["target"], source.encode(batch["source"]), target.encode(batch["target"]),
                strict=True):
            if max_tokens is not None and max(len(ids), len(other_ids)) > max_tokens:
                counts["kept"] -= 1
                counts["dropped"][too_long] = counts["dropped"].get(too_long, 0) + 1
                continue
            for name, value in zip(TOKENS, (text, other, ids, other_ids, len(ids), len(other_ids)), strict=True):
                columns[name].append(value)
        counts["source_tokens"] = counts.get("source_tokens", 0) + sum(columns["source_length"])
        counts["target_tokens"] = counts.get("target_tokens", 0) + sum(columns["target_length"])
        yield columns


def _texts(rows: Dataset, *columns: str) -> Iterator[str]:
    for batch in rows.iter(READ_ROWS):
        for column in columns:
            yield from batch[column]


# The cache


def _cached(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by `make` where it is missing: aside first, so that it is whole or not there."""
    folder = cache / name
    if not folder.is_dir():
        partial = cache / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            make(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(folder)
    return folder


def _key(*shaped_by: Any) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *shaped_by], sort_keys=True).encode()).hexdigest()[:16]


def _write(path: Path, features: Features, batches: Iterator[dict[str, list[Any]]]) -> None:
    with ArrowWriter(path=str(path), features=features) as writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.finalize()


def _chunks(pairs: Iterator[Pair]) -> Iterator[dict[str, list[str]]]:
    """Pairs as batches of columns."""
    batch: dict[str, list[str]] = {"source": [], "target": []}
    for source, target in pairs:
        batch["source"].append(source)
        batch["target"].append(target)
        if len(batch["source"]) == READ_ROWS:
            yield batch
            batch = {"source": [], "target": []}
    if batch["source"]:
        yield batch


def _save_report(folder: Path, report: dict[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _load_report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))
