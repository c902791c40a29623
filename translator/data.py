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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from filelock import FileLock

from translator.config import DataConfig, TokenizerConfig
from translator.errors import UserError
from translator.sources import SPLITS, identity, read
from translator.tokenizer import UNK_ID, Tokenizer, train_tokenizer

# Part of every cache key. The number is to be raised when what this module writes changes.
FORMAT = [2, *(f"{package} {version(package)}" for package in ("datasets", "sentencepiece"))]
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
    """What was read, kept and dropped by cause, in a line a split."""
    lines = []
    for split, counts in report["splits"].items():
        causes = ", ".join(f"{count:,} {cause}" for cause, count in counts["dropped"].items())
        parts = [f"{counts['kept']:,} of {counts['read']:,} pairs", counts["note"], causes and f"dropped: {causes}"]
        unknown = max(counts.get("source_unknown", 0), counts.get("target_unknown", 0))
        parts.append(f"{unknown:.2%} of the tokens are unknown" if unknown else "")
        lines.append(f"{split:10} " + "; ".join(filter(None, parts)))
    return "\n".join(lines)


class Counts:
    """Rows of one split read and kept, and those dropped by cause, with a few examples of each."""

    def __init__(self) -> None:
        self.read = self.kept = 0
        self.note = ""
        self.dropped: Counter[str] = Counter()
        self.examples: dict[str, list[list[Any]]] = defaultdict(list)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Counts:
        counts = cls()
        counts.read, counts.kept, counts.note = values["read"], values["kept"], values["note"]
        counts.dropped.update(values["dropped"])
        counts.examples.update(values["examples"])
        return counts

    def drop(self, cause: str, source: Any, target: Any) -> None:
        self.dropped[cause] += 1
        if len(self.examples[cause]) < EXAMPLES:
            self.examples[cause].append([str(source)[:200], str(target)[:200]])

    def as_json(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.kept, "note": self.note, "dropped": dict(self.dropped),
                "examples": dict(self.examples)}


# Cleaning


def _clean_splits(config: DataConfig) -> Path:
    """The cached folder of this data's splits as text."""
    shaped_by = {k: v for k, v in dataclasses.asdict(config).items() if k != "cache"}
    name = f"text-{_key(shaped_by, identity(config))}"
    return _cached(Path(config.cache), name, lambda new: _write_splits(config, new))


def _write_splits(config: DataConfig, folder: Path) -> None:
    """Write train.arrow, validation.arrow and test.arrow, with no sentence of either side in train and in another."""
    counts = {split: Counts() for split in SPLITS}
    rows = {split: read(config, split) for split in SPLITS}
    train = rows["train"]
    assert train is not None  # DataConfig requires it
    held_out: dict[str, list[Pair]] = {}
    for split, given in rows.items():
        if given is not None and split != "train":
            held_out[split] = list(_with_text(given, counts[split]))
            if not held_out[split]:
                raise UserError(f"data.{split}: every row lacks text on a side")
    taken = (set[int](), set[int]())  # keys of the sources and of the targets held out so far
    for pairs in held_out.values():
        _take(pairs, taken)
    cut: set[int] = set()
    for split in ("test", "validation"):
        if split not in held_out:
            held_out[split] = _cut(train, config, taken, split, counts[split])
            _take(held_out[split], taken)
            cut.update(_hash("\t".join(pair)) for pair in held_out[split])
    for split, pairs in held_out.items():
        counts[split].kept = len(pairs)
        _write(folder / f"{split}.arrow", TEXT, _chunks(iter(pairs)))
    _write(folder / "train.arrow", TEXT, _chunks(_clean(train, config, taken, cut, counts["train"])))
    if not counts["train"].kept:
        raise UserError(f"data.train: no pair is left after cleaning: {describe(_report(counts))}")
    _save_report(folder, _report(counts))


def _take(pairs: list[Pair], taken: tuple[set[int], set[int]]) -> None:
    for side, keys in enumerate(taken):
        keys.update(_sentence_key(pair[side]) for pair in pairs)


def _clean(
    rows: Dataset, config: DataConfig, held_out: tuple[set[int], set[int]], cut: set[int], counts: Counts
) -> Iterator[Pair]:
    """The training pairs worth training on; every other one is counted by the cause it was dropped for.

    The pairs cut out for validation or test, by hash in `cut`, are no part of train: neither read nor dropped.
    """
    seen: set[int] = set()
    for raw in _with_text(rows, counts):
        if cut and (key := _hash("\t".join(raw))) in cut:
            cut.remove(key)
            counts.read -= 1
            continue
        pair = _one_space(raw[0]), _one_space(raw[1])
        if max(map(len, pair)) > config.max_characters:
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


def _cut(
    train: Dataset, config: DataConfig, taken: tuple[set[int], set[int]], split: str, counts: Counts
) -> list[Pair]:
    """`data.holdout` pairs of train for a split that is missing, with neither side among the sentences `taken`.

    They are those of least hash, so that the choice depends on a pair alone, hardly on the others and not on their order.
    """
    candidates = 0
    least: dict[int, Pair] = {}
    for pair in _with_text(train, Counts()):
        if max(map(len, pair)) > config.max_characters or _ratio(*pair) > config.max_ratio:
            continue
        candidates += 1
        if _sentence_key(pair[0]) not in taken[0] and _sentence_key(pair[1]) not in taken[1]:
            least[_hash("\t".join(pair))] = pair
            if len(least) > 10 * config.holdout:
                least = dict(heapq.nsmallest(config.holdout, least.items()))
    count = min(config.holdout, int(candidates * HOLDOUT_SHARE), len(least))
    if not count:
        raise UserError(f"data.train: {candidates} clean pairs are too few to cut a {split} split from; set data.{split}")
    counts.read = count
    counts.note = "cut from train" + (f", fewer than data.holdout={config.holdout}" if count < config.holdout else "")
    return [pair for _, pair in heapq.nsmallest(count, least.items())]


def _one_space(text: str) -> str:
    """`text` with single spaces for white space, line breaks among it."""
    return " ".join(text.split())


def _ratio(source: str, target: str) -> float:
    shorter, longer = sorted((len(source), len(target)))
    return (longer + RATIO_SLACK) / (shorter + RATIO_SLACK)


def _sentence_key(text: str) -> int:
    """The same number for texts that differ in case, white space or compatible characters alone."""
    return _hash(_one_space(unicodedata.normalize("NFKC", text).casefold()))


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
        counts = Counts.from_json(report["splits"][split])
        tokens, unknown = Counter[str](), Counter[str]()
        limit = max_tokens if split == "train" else None
        _write(folder / f"{split}.arrow", TOKENS, _encoded(rows, source, target, limit, counts, tokens, unknown))
        report["splits"][split] = counts.as_json() | {
            f"{side}_tokens": tokens[side] for side in ("source", "target")} | {
            f"{side}_unknown": unknown[side] / max(1, tokens[side]) for side in ("source", "target")}
    if not report["splits"]["train"]["kept"]:
        raise UserError(f"train.batch_tokens={max_tokens} is less than the tokens of every training pair")
    _save_report(folder, report)


def _encoded(
    rows: Dataset, source: Tokenizer, target: Tokenizer, max_tokens: int | None, counts: Counts, tokens: Counter[str],
    unknown: Counter[str]
) -> Iterator[dict[str, list[Any]]]:
    """Batches of rows with their ids and lengths; with `max_tokens`, the longer ones are dropped, as are those without any.

    Adds to `tokens` and `unknown`, by side, the tokens written and those of them that are unknown.
    """
    for batch in rows.iter(READ_ROWS):
        columns: dict[str, list[Any]] = {name: [] for name in TOKENS}
        for text, other, ids, other_ids in zip(
                batch["source"], batch["target"], source.encode(batch["source"]), target.encode(batch["target"]),
                strict=True):
            lengths = len(ids), len(other_ids)
            if max_tokens is not None and (max(lengths) > max_tokens or min(lengths) == 1):
                counts.kept -= 1
                counts.drop("empty" if min(lengths) == 1 else "more tokens than train.batch_tokens", text, other)
                continue
            for name, value in zip(TOKENS, (text, other, ids, other_ids, *lengths), strict=True):
                columns[name].append(value)
        for side in ("source", "target"):
            tokens[side] += sum(columns[f"{side}_length"])
            unknown[side] += sum(ids.count(UNK_ID) for ids in columns[f"{side}_ids"])
        yield columns


def _texts(rows: Dataset, *columns: str) -> Iterator[str]:
    for batch in rows.iter(READ_ROWS):
        for column in columns:
            yield from batch[column]


# The cache


def _cached(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by `make` where it is missing: aside first, so that it is whole or not there.

    Of several processes at once, one makes it and the others wait.
    """
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{name}.lock"):
        if not folder.is_dir():
            partial = cache / f".{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
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


def _report(counts: dict[str, Counts]) -> dict[str, Any]:
    return {"splits": {split: counts[split].as_json() for split in SPLITS}}


def _save_report(folder: Path, report: dict[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _load_report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))
