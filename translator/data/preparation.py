"""Hugging Face dataset -> cleaned, counted, tokenised, cached Arrow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from filelock import FileLock

from translator.config.options import DataConfig, TokenizerConfig
from translator.data.cleaning import READ_ROWS, Counts, HeldOut, Pair, Rows, clean, cut, table_of, with_text
from translator.data.fingerprint import identity, is_local, sha256_of
from translator.data.sources import SPLITS, TEXT, read, write_arrow
from translator.data.text_files import require_file
from translator.runtime.atomic_files import read_plain, sync, take_place
from translator.runtime.errors import UserError, one_line
from translator.runtime.process_pool import InOrder, alone, in_order
from translator.text.sentence_splitter import split_sentences
from translator.text.tokenizer import UNK_ID, Tokenizer, train_tokenizer
from translator.text.vocabulary import narrow_target

# Part of every cache key. The number is to be raised when what this module writes changes.
FORMAT = [9, *(f"{package} {version(package)}" for package in ("datasets", "sentencepiece"))]

# Enough to train a tokenizer on; SentencePiece needs a gigabyte or two for them.
TOKENIZER_TEXTS = 1_000_000
# Enough to estimate how many sources hold several sentences.
SAMPLED_SOURCES = 100_000

# A worker needs seconds to start, in which this many are prepared; more than so many workers wait for the first process.
PAIRS_OF_A_WORKER, MOST_WORKERS = 500_000, 8

TOO_LONG = "more tokens than train.batch_tokens, or than model.max_positions where positions are learned"

# In each folder of the cache: the sums of its other files, as `sha256sum -c` reads them.
SUMS = "SHA256SUMS"
REBUILD = "Remove this folder; the next start rebuilds it"

SIDES = ("source", "target")
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
    target_tokenizer: Tokenizer  # the same object where both sides have one vocabulary, and all of it
    report: dict[str, Any]


def prepare(
    config: DataConfig, tokenizer: TokenizerConfig, *, max_tokens: int, tokenizers: tuple[Tokenizer, Tokenizer] | None = None
) -> Corpus:
    """Read, clean, train the tokenizer on the training split alone, tokenise; or take all that from the cache.

    With `tokenizers` none is trained. A training pair of which a side has more than `max_tokens` tokens is dropped and counted.
    """
    splits = _clean_splits(config)
    given = tokenizers and [[hashlib.sha256(side.model).hexdigest(), side.tag_ids] for side in tokenizers]
    trained = {name: value for name, value in dataclasses.asdict(tokenizer).items() if name != "sampling"}  # in training alone
    key = _key(splits.name, given or trained, max_tokens)
    folder = _cached(
        Path(config.cache), f"__tokens-{key}",
        lambda new: _tokenise(
            splits, tokenizers or _train_tokenizers(splits, tokenizer, config.tags), max_tokens, new, config.workers))
    if tokenizers is None:
        source, target = (Tokenizer.load(_checked(folder, f"{side}.model")) for side in SIDES)
        target = source if target.model == source.model else target
    else:
        source, target = tokenizers
    train, validation, test = (_rows(folder, split) for split in SPLITS)
    return Corpus(train, validation, test, source, target, _load_report(folder))


def load_split(config: DataConfig, split: str) -> Dataset:
    """The texts of a split, in the columns source and target: train cleaned, validation and test as they are."""
    return _rows(_clean_splits(config), split)


def digest(rows: Dataset) -> str:
    """What tells these sentences, in this order, from any others."""
    whole = hashlib.sha256()
    for batch in rows.iter(READ_ROWS):
        for pair in zip(*(batch[side] for side in SIDES), strict=True):
            whole.update(json.dumps(pair).encode())
    return whole.hexdigest()


def describe(report: dict[str, Any]) -> str:
    """What was read, kept and dropped by cause, in a line a split."""
    return "\n".join(f"{split:10} {describe_counts(counts)}" for split, counts in report["splits"].items())


def describe_counts(counts: dict[str, Any]) -> str:
    """What was read, kept and dropped of some rows."""
    causes = ", ".join(f"{count:,} {cause}" for cause, count in counts["dropped"].items())
    parts = [f"{counts['kept']:,} of {counts['read']:,} pairs", counts["note"], causes and f"dropped: {causes}"]
    unknown = max(counts.get("source_unknown", 0), counts.get("target_unknown", 0))
    copied = counts["copied"]["count"]
    parts.append(f"{copied:,} copied from the source" if copied else "")
    parts.append(f"{unknown:.2%} of the tokens are unknown" if unknown else "")
    return "; ".join(filter(None, parts))


# Cleaning


def _clean_splits(config: DataConfig) -> Path:
    """Return the cached folder of this data's splits as text."""
    shaped_by = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("cache", "workers")}
    content = identity(config)

    def write(folder: Path) -> None:
        _write_splits(config, folder)
        if is_local(config) and identity(config) != content:
            raise UserError("data: the files changed while they were read. Run the same command again once they are complete")

    return _cached(Path(config.cache), f"__text-{_key(shaped_by, content)}", write)


def _write_splits(config: DataConfig, folder: Path) -> None:
    """Write train.arrow, validation.arrow and test.arrow, with no sentence of either side in train and in another."""
    counts = {split: Counts() for split in SPLITS}
    scratch = dataclasses.replace(config, cache=str(folder))  # what a killed start leaves there goes with the folder
    rows = {split: read(scratch, split) for split in SPLITS}
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
        write_arrow(folder / f"{split}.arrow", TEXT, [table_of(pairs[split])])
    cleaned = clean(train, config, held_out, counts["train"], in_order=_workers(config.workers, len(train)))
    write_arrow(folder / "train.arrow", TEXT, cleaned)
    if not counts["train"].kept:
        raise UserError(
            f"data.train: of {counts['train'].read:,} pairs none is left after cleaning: {counts['train'].causes()}")
    digests = {split: digest(Dataset.from_file(str(folder / f"{split}.arrow"))) for split in pairs}
    _save_report(folder, {"splits": {split: counts[split].to_json() for split in SPLITS}, "digests": digests})


def _workers(wanted: int | None, pairs: int) -> InOrder:
    """As many processes as are worth while to prepare so many pairs."""
    worth = min(pairs // PAIRS_OF_A_WORKER, os.cpu_count() or 1, MOST_WORKERS)
    return partial(in_order, workers=max(1, min(wanted or worth, pairs // READ_ROWS)), remedy="try data.workers=1")


# Tokenising


def _train_tokenizers(splits: Path, config: TokenizerConfig, tags: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of train.arrow of `splits`, the source's with a piece for each tag: one and the same where all is joint."""
    train = _rows(splits, "train")
    if config.joint:
        tokenizer = train_tokenizer(_texts(train, "source", "target"), config, tags)
        return narrow_target(tokenizer, _texts(train, "target")) if config.narrow_target else (tokenizer, tokenizer)
    return train_tokenizer(_texts(train, "source"), config, tags), train_tokenizer(_texts(train, "target"), config)


def _tokenise(
    splits: Path, tokenizers: tuple[Tokenizer, Tokenizer], max_tokens: int, folder: Path, workers: int | None
) -> None:
    """Write every split of `splits` with its ids, and the tokenizers."""
    source, target = tokenizers
    source.save(folder / "source.model")
    target.save(folder / "target.model")
    report = _load_report(splits)
    for split in SPLITS:
        rows = _rows(splits, split)
        counts = Counts.from_json(report["splits"][split])
        tokens = Counter[str]()
        limit = max_tokens if split == "train" else None
        tables = encoded(rows, (source, target), limit, counts, tokens, in_order=_workers(workers, len(rows)))
        write_arrow(folder / f"{split}.arrow", TOKENS, tables)
        report["splits"][split] = counts.to_json() | {
            f"{side}_tokens": tokens[side] for side in SIDES} | {
            f"{side}_longest": tokens[f"{side}_longest"] for side in SIDES} | {
            f"{side}_unknown": tokens[f"{side}_unknown"] / max(1, tokens[side]) for side in SIDES}
    if not report["splits"]["train"]["kept"]:
        raise UserError(
            f"every training pair has more than {max_tokens} tokens: raise train.batch_tokens, and model.max_positions where "
            "positions are learned")
    lengths = Dataset.from_file(str(folder / "train.arrow")).with_format("numpy")["source_length"][:]
    report["splits"]["train"] |= {
        "source_long": int(np.percentile(lengths, 99)), "source_several": _share_of_several(_rows(splits, "train"))}
    report["fingerprint"] = _fingerprint([folder / f"{split}.arrow" for split in SPLITS])
    _save_report(folder, report)


def _fingerprint(files: list[Path]) -> str:
    """Return what tells these data from any others."""
    return hashlib.sha256(bytes.fromhex("".join(map(sha256_of, files)))).hexdigest()


class Encoder:
    """Gives rows their ids and lengths, in this process or in others.

    With `max_tokens`, longer ones are dropped, and those without any: they come apart, with the cause first.
    """

    def __init__(self, tokenizers: tuple[Tokenizer, Tokenizer], max_tokens: int | None) -> None:
        self.tokenizers = tokenizers
        self.max_tokens = max_tokens

    def __call__(self, rows: Rows) -> tuple[pa.Table, list[tuple[str, str, str]]]:
        texts = [rows[side] for side in SIDES]
        ids = [tokenizer.encode(column) for tokenizer, column in zip(self.tokenizers, texts, strict=True)]
        lengths = [np.fromiter(map(len, column), np.int32, len(column)) for column in ids]
        schema = TOKENS.arrow_schema
        columns = [pa.array(column, kind) for column, kind in zip((*texts, *ids, *lengths), schema.types, strict=True)]
        table = pa.table(columns, schema=schema)
        if self.max_tokens is None:
            return table, []
        empty = np.minimum(*(
            length - _tags_of(tokenizer, column)
            for tokenizer, column, length in zip(self.tokenizers, ids, lengths, strict=True))) == 1  # EOS alone
        bad = empty | (np.maximum(*lengths) > self.max_tokens)
        causes = np.where(empty, "empty", TOO_LONG)
        dropped = list(compress(zip(causes.tolist(), *texts, strict=True), bad))
        return table.filter(pa.array(~bad)), dropped


def _tags_of(tokenizer: Tokenizer, column: list[list[int]]) -> np.ndarray | int:
    """How many of each text's ids are not its own."""
    return np.fromiter(map(tokenizer.count_tags, column), np.int32, len(column)) if tokenizer.has_tags else 0


def encoded(
    rows: Dataset, tokenizers: tuple[Tokenizer, Tokenizer], max_tokens: int | None, counts: Counts, tokens: Counter[str], *,
    in_order: InOrder = alone
) -> Iterator[pa.Table]:
    """The rows that `Encoder` keeps, as it gives them; the others are counted.

    Adds to `tokens`, by side, those written and those of them that are unknown, and puts down the longest.
    """
    for table, dropped in in_order(partial(Encoder, tokenizers, max_tokens), rows.iter(READ_ROWS)):
        counts.kept -= len(dropped)
        for row in dropped:
            counts.drop(*row)
        for side in SIDES:
            ids, lengths = pc.list_flatten(table[f"{side}_ids"]), table[f"{side}_length"]
            tokens[side] += len(ids)
            tokens[f"{side}_unknown"] += pc.sum(pc.equal(ids, UNK_ID)).as_py() or 0
            tokens[f"{side}_longest"] = max(tokens[f"{side}_longest"], pc.max(lengths).as_py() or 0)
        yield table


def _share_of_several(rows: Dataset) -> float:
    """Estimate the share of the sources that hold two or more sentences."""
    several = [len(split_sentences(text)) > 1 for text in _texts(rows, "source", most=SAMPLED_SOURCES)]
    return sum(several) / max(1, len(several))


def _texts(rows: Dataset, *columns: str, most: int = TOKENIZER_TEXTS) -> Iterator[str]:
    """Yield the texts of some columns: of many, `most`, evenly from all of the rows."""
    step = -(-len(rows) * len(columns) // most)
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
            try:
                partial.mkdir()
                make(partial)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            files = sorted(filter(Path.is_file, partial.iterdir()))
            (partial / SUMS).write_text("".join(f"{sha256_of(file)}  {file.name}\n" for file in files))
            for file in (*files, partial / SUMS):
                sync(file)
            take_place(partial, folder)
    return folder


def _key(*shaped_by: Any) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *shaped_by], sort_keys=True).encode()).hexdigest()[:16]


def _rows(folder: Path, split: str) -> Dataset:
    return Dataset.from_file(str(_checked(folder, f"{split}.arrow")))


def _save_report(folder: Path, report: dict[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _load_report(folder: Path) -> dict[str, Any]:
    return json.loads(_checked(folder, "report.json").read_text(encoding="utf-8"))


def _checked(folder: Path, name: str) -> Path:
    """Return the path of a file of the cache; UserError where it does not hold what was written. It costs a second a GB."""
    try:
        require_file(folder / name)  # a FIFO would be waited for
        intact = f"{sha256_of(folder / name)}  {name}" in read_plain(folder / SUMS).decode().splitlines()
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"{folder}: damaged: {one_line(str(error))[:200]}. {REBUILD}") from error
    if not intact:
        raise UserError(f"{folder}: damaged: {name} does not hold what was written. {REBUILD}")
    return folder / name
