"""Hugging Face dataset -> cleaned, counted, tokenised, cached Arrow (floor 2)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from filelock import FileLock

from translator.cleaning import READ_ROWS, Counts, HeldOut, Pair, clean, cut, with_text
from translator.config import DataConfig, TokenizerConfig
from translator.errors import UserError
from translator.sources import SPLITS, identity, read
from translator.tokenizer import UNK_ID, Tokenizer, train_tokenizer

# Part of every cache key. The number is to be raised when what this module writes changes.
FORMAT = [5, *(f"{package} {version(package)}" for package in ("datasets", "sentencepiece"))]

# Enough to train a tokenizer on; SentencePiece needs a gigabyte or two for them.
TOKENIZER_TEXTS = 1_000_000

TEXT = Features({"source": Value("string"), "target": Value("string")})
TOKENS = Features({
    **TEXT, "source_ids": List(Value("int32")), "target_ids": List(Value("int32")), "source_length": Value("int32"),
    "target_length": Value("int32")})


@dataclass(frozen=True)
class Corpus:
    """Tokenised splits with the columns source, target, source_ids, target_ids, source_length, target_length."""

    train: Dataset
    validation: Dataset
    test: Dataset
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer  # the same object where the vocabulary is joint
    report: dict[str, Any]


def prepare(
    config: DataConfig, tokenizer: TokenizerConfig, *, max_tokens: int, tokenizers: tuple[Tokenizer, Tokenizer] | None = None
) -> Corpus:
    """Read, clean, train the tokenizer on the training split alone, tokenise; or take all that from the cache.

    With `tokenizers` none is trained. A training pair of which a side has more than `max_tokens` tokens is dropped and counted.
    """
    splits = _clean_splits(config)
    given = tokenizers and [[hashlib.sha256(side.model).hexdigest(), side.tag_ids] for side in tokenizers]
    key = _key(splits.name, given or dataclasses.asdict(tokenizer), max_tokens)
    folder = _cached(
        Path(config.cache), f"tokens-{key}",
        lambda new: _tokenise(splits, tokenizers or _train_tokenizers(splits, tokenizer, config.tags), max_tokens, new))
    if tokenizers is None:
        source = Tokenizer.load(folder / "source.model")
        target = source if tokenizer.joint else Tokenizer.load(folder / "target.model")
    else:
        source, target = tokenizers
    train, validation, test = (Dataset.from_file(str(folder / f"{split}.arrow")) for split in SPLITS)
    return Corpus(train, validation, test, source, target, _load_report(folder))


def load_split(config: DataConfig, split: str) -> Dataset:
    """The texts of a split, in the columns source and target: train cleaned, validation and test as they are."""
    return Dataset.from_file(str(_clean_splits(config) / f"{split}.arrow"))


def describe(report: dict[str, Any]) -> str:
    """What was read, kept and dropped by cause, in a line a split."""
    return "\n".join(f"{split:10} {describe_counts(counts)}" for split, counts in report["splits"].items())


def describe_counts(counts: dict[str, Any]) -> str:
    """What was read, kept and dropped of some rows."""
    causes = ", ".join(f"{count:,} {cause}" for cause, count in counts["dropped"].items())
    parts = [f"{counts['kept']:,} of {counts['read']:,} pairs", counts["note"], causes and f"dropped: {causes}"]
    unknown = max(counts.get("source_unknown", 0), counts.get("target_unknown", 0))
    parts.append(f"{unknown:.2%} of the tokens are unknown" if unknown else "")
    return "; ".join(filter(None, parts))


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
    if config.window is not None:
        counts["train"].note = "of the first window; the others are read as training comes to them"
    held_out, pairs = HeldOut(config), dict[str, list[Pair]]()
    for split in ("validation", "test"):
        given = rows[split]
        if given is not None:
            pairs[split] = list(with_text(given, counts[split]))
            if not pairs[split]:
                raise UserError(f"data.{split}: every row lacks text on a side")
            held_out.add(pairs[split])
    for split in ("test", "validation"):
        if rows[split] is None:
            pairs[split] = cut(train, config, held_out, split, counts[split])
            held_out.add_cut(pairs[split])
        counts[split].kept = len(pairs[split])
        _write(folder / f"{split}.arrow", TEXT, _columns(iter(pairs[split])))
    _write(folder / "train.arrow", TEXT, _columns(clean(train, config, held_out, counts["train"])))
    if not counts["train"].kept:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in counts["train"].dropped.items())
        raise UserError(f"data.train: of {counts['train'].read:,} pairs none is left after cleaning: {causes}")
    _save_report(folder, {"splits": {split: counts[split].to_json() for split in SPLITS}})


# Tokenising


def _train_tokenizers(splits: Path, config: TokenizerConfig, tags: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of train.arrow of `splits`, the source's with a piece for each tag: one and the same where they are joint."""
    train = Dataset.from_file(str(splits / "train.arrow"))
    if config.joint:
        tokenizer = train_tokenizer(_texts(train, "source", "target"), config, tags)
        return tokenizer, tokenizer
    return train_tokenizer(_texts(train, "source"), config, tags), train_tokenizer(_texts(train, "target"), config)


def _tokenise(splits: Path, tokenizers: tuple[Tokenizer, Tokenizer], max_tokens: int, folder: Path) -> None:
    """Write every split of `splits` with its ids, and the tokenizers."""
    source, target = tokenizers
    source.save(folder / "source.model")
    target.save(folder / "target.model")
    report = _load_report(splits)
    for split in SPLITS:
        rows = Dataset.from_file(str(splits / f"{split}.arrow"))
        counts = Counts.from_json(report["splits"][split])
        tokens, unknown = Counter[str](), Counter[str]()
        limit = max_tokens if split == "train" else None
        _write(folder / f"{split}.arrow", TOKENS, encoded(rows, source, target, limit, counts, tokens, unknown))
        report["splits"][split] = counts.to_json() | {
            f"{side}_tokens": tokens[side] for side in ("source", "target")} | {
            f"{side}_longest": tokens[f"{side}_longest"] for side in ("source", "target")} | {
            f"{side}_unknown": unknown[side] / max(1, tokens[side]) for side in ("source", "target")}
    if not report["splits"]["train"]["kept"]:
        raise UserError(f"train.batch_tokens={max_tokens} is less than the tokens of every training pair")
    report["fingerprint"] = _fingerprint([folder / f"{split}.arrow" for split in SPLITS])
    _save_report(folder, report)


def _fingerprint(files: list[Path]) -> str:
    """What tells these data from any others."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def encoded(
    rows: Dataset, source: Tokenizer, target: Tokenizer, max_tokens: int | None, counts: Counts, tokens: Counter[str],
    unknown: Counter[str]
) -> Iterator[dict[str, list[Any]]]:
    """Batches of rows with their ids and lengths; with `max_tokens`, longer ones are dropped, and those without any.

    Adds to `tokens` and `unknown`, by side, the tokens written and those of them that are unknown; and to `tokens` the longest.
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
            tokens[f"{side}_longest"] = max([tokens[f"{side}_longest"], *columns[f"{side}_length"]])
            unknown[side] += sum(ids.count(UNK_ID) for ids in columns[f"{side}_ids"])
        yield columns


def _texts(rows: Dataset, *columns: str) -> Iterator[str]:
    """The texts of some columns: of many, TOKENIZER_TEXTS at most, evenly from all of the rows."""
    step = -(-len(rows) * len(columns) // TOKENIZER_TEXTS)
    for batch in rows.select(range(0, len(rows), max(1, step))).iter(READ_ROWS):
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


def _columns(pairs: Iterator[Pair]) -> Iterator[dict[str, list[str]]]:
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
