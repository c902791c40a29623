"""Prepare a dataset for training: cleaned, counted, tokenised and cached as Arrow files."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from translator.config.corpora import CorpusConfig, corpora_of
from translator.config.data import DataConfig
from translator.config.languages import BACK_TRANSLATED, SEPARATOR, split_tag
from translator.config.named_corpus import NamedCorpusOptions
from translator.config.options import TokenizerConfig
from translator.config.synthetic import SyntheticOptions
from translator.data.cleaning import (
    READ_ROWS,
    Counts,
    HeldOut,
    Pair,
    Rows,
    Section,
    clean,
    cut_split,
    in_batches,
    table_of,
    with_text,
)
from translator.data.filters import without_rules_off
from translator.data.sources import SPLITS, TEXT, identity, is_local, read, write_arrow
from translator.data.text_files import require_file, sha256_of
from translator.runtime.atomic_files import read_plain, sync, take_place
from translator.runtime.errors import UserError
from translator.runtime.process_pool import InOrder, alone, in_order
from translator.text.letter_case import share_of_capitals
from translator.text.sentence_splitter import split_sentences
from translator.text.tokenizer import UNK_ID, Tokenizer, Tokenizers, narrow_target, train_tokenizer

# A worker takes seconds to start, in which this many pairs are prepared. The main process keeps up with this many workers.
PAIRS_PER_WORKER, MOST_WORKERS = 500_000, 8
TOO_LONG = "more tokens than train.batch_tokens, or than model.max_positions where positions are learned"

# Part of every key of the cache. Raise the number when the content of its folders changes.
FORMAT = [9, *(f"{package} {version(package)}" for package in ("datasets", "sentencepiece"))]
SUMS = "SHA256SUMS"  # in each folder of the cache: the sums of its other files, as `sha256sum -c` reads them
SIDES = ("source", "target")
TOKENS = Features({**TEXT, "source_ids": List(Value("int32")), "target_ids": List(Value("int32")),
                   "source_length": Value("int32"), "target_length": Value("int32")})


@dataclass(frozen=True)
class Corpus:
    """Tokenised splits with the columns source, target, source_ids, target_ids, source_length, target_length."""

    train: Dataset
    validation: Dataset
    test: Dataset
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer  # the same object if both sides share the whole vocabulary
    report: dict[str, Any]


def prepare(config: DataConfig, tokenizer: TokenizerConfig, *, max_tokens: int, tokenizers: Tokenizers | None = None,
            splits: Path | None = None) -> Corpus:
    """Read, clean and tokenise a dataset, or take it from the cache.

    splits: take the texts of this folder, as `clean_splits` returns one.
    tokenizers: use these, instead of training one on the training split.
    max_tokens: drop and count training pairs with a longer side.
    """
    splits = splits or clean_splits(config)
    given = tokenizers and [[hashlib.sha256(side.model).hexdigest(), side.tag_ids] for side in tokenizers]
    trained = {name: value for name, value in dataclasses.asdict(tokenizer).items() if name != "sampling"}  # of training only
    name = f"__tokens-{cache_key(splits.name, given or trained, max_tokens)}"
    folder = cached_folder(Path(config.cache), name, lambda new: _tokenise(
        splits, tokenizers or _train_tokenizers(splits, tokenizer, _tags(config)), max_tokens, new, config.workers))
    source, target = tokenizers or [Tokenizer.load(checked_file(folder, f"{side}.model")) for side in SIDES]
    if tokenizers is None and target.model == source.model:
        target = source
    train, validation, test = (load_rows(folder, split) for split in SPLITS)
    return Corpus(train, validation, test, source, target, load_report(folder))


def report_of(counts: Mapping[str, Mapping[str, Counts]]) -> dict[str, Any]:
    """Return the counts of each split, and of each corpus in it, as `load_report` returns them."""
    splits = {}
    for split, of_corpora in counts.items():
        total = Counts()
        for of_corpus in of_corpora.values():
            total.add(of_corpus)
        splits[split] = vars(total)
    corpora = {split: {name: vars(of_corpus) for name, of_corpus in of_corpora.items()} for split, of_corpora in counts.items()}
    return {"splits": splits, "corpora": corpora} if any(itertools.chain(*corpora.values())) else {"splits": splits}


def counts_of(report: Mapping[str, Any]) -> dict[str, dict[str, Counts]]:
    """Return the counts of a report, by split and by corpus: "" where there is only one, or for what was cut from all."""
    names = {field.name for field in dataclasses.fields(Counts)}
    corpora = report.get("corpora") or {split: {"": counts} for split, counts in report["splits"].items()}
    return {split: {name: Counts(**{key: counts[key] for key in names}) for name, counts in of_split.items()}
            for split, of_split in corpora.items()}


def sections_of(counts: Mapping[str, Counts]) -> dict[str, range]:
    """Return where the rows of each corpus are in a split that holds them one after the other."""
    ends = itertools.accumulate(of_corpus.kept for of_corpus in counts.values())
    return {name: range(end - of_corpus.kept, end) for (name, of_corpus), end in zip(counts.items(), ends, strict=True)}


def corpora_in(report: Mapping[str, Any], split: str) -> dict[str, range]:
    """Return where the rows of each corpus are in a split; nothing if the data are one corpus."""
    return sections_of(counts_of(report)[split]) if "corpora" in report else {}


def scored_apart(report: Mapping[str, Any], split: str) -> dict[str, range]:
    """Return where the rows of each corpus are in validation or test, if several have that split."""
    sections = corpora_in(report, split)
    return sections if len(sections) > 1 else {}


def load_split(config: DataConfig, split: str) -> Dataset:
    """Return the texts of a split in the columns source and target: train cleaned, validation and test unchanged."""
    return load_rows(clean_splits(config), split)


def load_counts(config: DataConfig) -> dict[str, dict[str, Counts]]:
    """Return what became of the rows of each split in cleaning, as `counts_of` does."""
    return counts_of(load_report(clean_splits(config)))


def digest(rows: Dataset) -> str:
    """Return the SHA-256 of sentence pairs and their order."""
    total = hashlib.sha256()
    for batch in rows.iter(READ_ROWS):
        for pair in zip(*(batch[side] for side in SIDES), strict=True):
            total.update(json.dumps(pair).encode())
    return total.hexdigest()


def clean_splits(config: DataConfig) -> Path:
    """Return the cached folder of this data's splits as text."""
    corpora = corpora_of(config)
    content = [_identity(corpus) for corpus in corpora]

    def fill(folder: Path) -> None:
        _write_splits(config, folder)
        if any(is_local(corpus) and identity(corpus) != before for corpus, before in zip(corpora, content, strict=True)):
            raise UserError("data: the files changed while they were read. Run the same command again once they are complete")

    key = [_shaping(config), *content]
    if config.corpora is not None:
        key.append([[corpus.name, _shaping(corpus)] for corpus in corpora])
    return cached_folder(Path(config.cache), f"__text-{cache_key(*key)}", fill)


def _shaping(config: DataConfig) -> dict[str, Any]:
    """Return the options that shape the splits as text."""
    groups = {field.name for group in (NamedCorpusOptions, SyntheticOptions) for field in dataclasses.fields(group)}
    apart = {"cache", "workers", "augment", "corpora", "temperature", "name", "weight", *groups}  # or known by their content
    apart |= {option for option in ("score", "min_score", "context") if not getattr(config, option)}  # younger than FORMAT
    return without_rules_off({name: value for name, value in dataclasses.asdict(config).items() if name not in apart})


def _write_splits(config: DataConfig, folder: Path) -> None:
    """Write train.arrow, validation.arrow and test.arrow. No sentence of train is in another split."""
    corpora = corpora_of(dataclasses.replace(config, cache=str(folder)))  # what a killed start leaves goes with the folder
    rows = {split: [read_corpus(corpus, split) for corpus in corpora] for split in SPLITS}
    held_out, counts = HeldOut(config), {split: dict[str, Counts]() for split in SPLITS}
    pairs = {split: dict[str, list[Pair]]() for split in ("validation", "test")}
    train = [Section(table, corpus, counts["train"].setdefault(corpus.name, Counts()))
             for table, corpus in zip(rows["train"], corpora, strict=True) if table is not None]
    if config.window is not None:
        for section in train:
            section.counts.note = "of the first window; the others are read during training"
    for split, of_corpora in pairs.items():
        for corpus, table in zip(corpora, rows[split], strict=True):
            if table is not None:
                of_corpora[corpus.name] = list(with_text(table, counts[split].setdefault(corpus.name, Counts())))
                if not of_corpora[corpus.name]:
                    raise UserError(f"{_option(corpus, split)}: every row lacks text on a side")
                held_out.add(of_corpora[corpus.name])
    for split in ("test", "validation"):
        if not pairs[split]:
            cut = counts[split][""] = Counts()
            pairs[split][""] = cut_split(train, config, held_out, split, cut)
            held_out.add_cut(pairs[split][""])
        for name, of_corpus in pairs[split].items():
            counts[split][name].kept = len(of_corpus)
        write_arrow(folder / f"{split}.arrow", TEXT, map(table_of, pairs[split].values()))
    cleaned = clean(train, held_out, in_order=workers_for(config.workers, sum(len(section.rows) for section in train)))
    write_arrow(folder / "train.arrow", TEXT, cleaned)
    for section in train:
        if not section.counts.kept:
            raise UserError(f"{_option(section.config, 'train')}: of {section.counts.read:,} pairs, cleaning left none: "
                            f"{section.counts.causes() or 'all were cut for validation or test'}")
    digests = {split: digest(Dataset.from_file(str(folder / f"{split}.arrow"))) for split in pairs}
    save_report(folder, {**report_of(counts), "digests": digests})


@contextmanager
def _naming(corpus: CorpusConfig) -> Iterator[None]:
    """Let a UserError name the corpus."""
    try:
        yield
    except UserError as error:
        raise UserError(f"data.corpora, {corpus.name}: {error}" if corpus.name else str(error)) from error


def _identity(corpus: CorpusConfig) -> list[Any]:
    with _naming(corpus):
        return identity(corpus)


def read_corpus(corpus: CorpusConfig, split: str) -> Dataset | None:
    """Return the rows of a split as `read` does; UserErrors name the corpus."""
    with _naming(corpus):
        return read(corpus, split)


def _option(corpus: CorpusConfig, option: str) -> str:
    return f"data.corpora, {corpus.name}: {option}" if corpus.name else f"data.{option}"


def workers_for(requested: int | None, pairs: int) -> InOrder:
    """Return a way to prepare this many pairs in several processes: as many as requested, or as pay."""
    useful = min(pairs // PAIRS_PER_WORKER, os.cpu_count() or 1, MOST_WORKERS)
    return partial(in_order, workers=max(1, min(requested or useful, pairs // READ_ROWS)), remedy="try data.workers=1")


def _tags(config: DataConfig) -> tuple[str, ...]:
    """Return the tags with which sources begin, and the separator behind context."""
    return (*config.tags, *[BACK_TRANSLATED] * (config.monolingual is not None), *[SEPARATOR] * (config.context > 0))


def _train_tokenizers(splits: Path, config: TokenizerConfig, tags: Sequence[str]) -> Tokenizers:
    """Train the tokenizers of both sides on train.arrow of `splits`. Source tokenizers have a piece for each tag."""
    train = load_rows(splits, "train")
    if config.joint:
        tokenizer = train_tokenizer(_texts(train, "source", "target"), config, tags)
        return narrow_target(tokenizer, _texts(train, "target")) if config.narrow_target else (tokenizer, tokenizer)
    return train_tokenizer(_texts(train, "source"), config, tags), train_tokenizer(_texts(train, "target"), config)


def _tokenise(splits: Path, tokenizers: Tokenizers, max_tokens: int, folder: Path, workers: int | None) -> None:
    """Write every split of `splits` with its ids, and the tokenizers."""
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        tokenizer.save(folder / f"{side}.model")
    report = load_report(splits)
    counts, statistics = counts_of(report), dict[str, dict[str, Any]]()
    for split in SPLITS:
        rows, file = load_rows(splits, split), folder / f"{split}.arrow"
        sections = [(rows.select(places), counts[split][name]) for name, places in sections_of(counts[split]).items()]
        limit = max_tokens if split == "train" else None
        write_arrow(file, TOKENS, encode_rows(sections, tokenizers, limit, in_order=workers_for(workers, len(rows))))
        statistics[split] = _token_statistics(Dataset.from_file(str(file)))
    report |= report_of(counts)
    for split, of_split in statistics.items():
        report["splits"][split] |= of_split
    for name, of_corpus in counts["train"].items():
        if not of_corpus.kept:
            raise UserError(f"{name and f'{name}: '}every training pair has more than {max_tokens} tokens: raise "
                            "train.batch_tokens, and model.max_positions where positions are learned")
    lengths = Dataset.from_file(str(folder / "train.arrow")).with_format("numpy")["source_length"][:]
    sampled = [split_tag(text)[1] for text in _texts(load_rows(splits, "train"), "source", most=100_000)]
    several = sum(len(split_sentences(text)) > 1 for text in sampled)
    report["splits"]["train"] |= {
        "source_long": int(np.percentile(lengths, 99)), "source_several": several / max(1, len(sampled)),
        "source_capitals": share_of_capitals(sampled)}
    sums = "".join(sha256_of(folder / f"{split}.arrow") for split in SPLITS)
    report["fingerprint"] = hashlib.sha256(bytes.fromhex(sums)).hexdigest()
    save_report(folder, report)


def _token_statistics(rows: Dataset) -> dict[str, Any]:
    """Return, by side, the number of tokens, the length of the longest text, and the fraction that is unknown."""
    table, statistics = rows.data.table, dict[str, Any]()
    for side in SIDES:
        lengths = table[f"{side}_length"]
        ids = (pc.list_flatten(batch[f"{side}_ids"]) for batch in table.to_batches())  # all at once might not fit into memory
        unknown = sum(int(np.count_nonzero(part.to_numpy() == UNK_ID)) for part in ids)
        tokens = pc.sum(lengths).as_py() or 0
        statistics |= {f"{side}_tokens": tokens, f"{side}_longest": pc.max(lengths).as_py() or 0,
                       f"{side}_unknown": unknown / max(1, tokens)}
    return statistics


@dataclass(frozen=True)
class Encoder:
    """Tokenise rows, in this process or in a worker. Drop those with a side that is empty or longer than `max_tokens`."""

    tokenizers: Tokenizers
    max_tokens: int | None  # None: keep all rows

    def __call__(self, numbered: tuple[int, Rows]) -> tuple[int, pa.Table, list[tuple[str, str, str]]]:
        """Return the section, the rows kept, with ids and lengths, and cause, source and target of those dropped."""
        section, rows = numbered
        texts = [rows[side] for side in SIDES]
        ids = [tokenizer.encode(column) for tokenizer, column in zip(self.tokenizers, texts, strict=True)]
        lengths = [np.fromiter(map(len, column), np.int32, len(column)) for column in ids]
        schema = TOKENS.arrow_schema
        columns = [pa.array(column, kind) for column, kind in zip((*texts, *ids, *lengths), schema.types, strict=True)]
        table = pa.table(columns, schema=schema)
        if self.max_tokens is None:
            return section, table, []
        tags = [np.fromiter(map(tokenizer.count_tags, column), np.int32, len(column)) if tokenizer.has_tags else 0
                for tokenizer, column in zip(self.tokenizers, ids, strict=True)]
        empty = np.minimum(lengths[0] - tags[0], lengths[1] - tags[1]) == 1  # only EOS
        dropped = empty | (np.maximum(*lengths) > self.max_tokens)
        causes = np.where(empty, "empty", TOO_LONG)
        return section, table.filter(pa.array(~dropped)), list(compress(zip(causes.tolist(), *texts, strict=True), dropped))


def encode_rows(sections: Sequence[tuple[Dataset, Counts]], tokenizers: Tokenizers, max_tokens: int | None, *,
                in_order: InOrder = alone) -> Iterator[pa.Table]:
    """Yield the rows of each section that `Encoder` keeps, as tables of `TOKENS`. Count the others."""
    batches = in_batches([rows for rows, _ in sections])
    for number, table, dropped in in_order(partial(Encoder, tokenizers, max_tokens), batches):
        counts = sections[number][1]
        counts.kept -= len(dropped)
        for row in dropped:
            counts.drop(*row)
        yield table


def _texts(rows: Dataset, *columns: str, most: int = 1_000_000) -> Iterator[str]:
    """Yield the texts of columns; of more than `most`, evenly spaced ones. For a million, SentencePiece needs one or two GB."""
    step = -(-len(rows) * len(columns) // most)
    for batch in rows.select(range(0, len(rows), max(1, step))).iter(READ_ROWS):
        for column in columns:
            yield from batch[column]


# The cache: folders that are complete or absent, made by one process at a time, and checked when they are read


def cache_key(*determined_by: object) -> str:
    """Return a key that differs if anything differs that determines a folder's content."""
    return hashlib.sha256(json.dumps([FORMAT, *determined_by], sort_keys=True).encode()).hexdigest()[:16]


def cached_folder(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache. If it is missing, one process lets `fill` write it, and others wait."""
    folder, new = cache / name, cache / f".{name}.partial"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{name}.lock"):
        if not folder.is_dir():
            shutil.rmtree(new, ignore_errors=True)
            try:
                new.mkdir()
                fill(new)
                files = sorted(filter(Path.is_file, new.iterdir()))
                (new / SUMS).write_text("".join(f"{sha256_of(file)}  {file.name}\n" for file in files))
                for file in (*files, new / SUMS):
                    sync(file)
                take_place(new, folder)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return folder


def checked_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a cached folder; UserError if it was damaged. Takes a second a GB."""
    try:
        require_file(folder / name)  # opening a FIFO would wait
        if f"{sha256_of(folder / name)}  {name}" in read_plain(folder / SUMS).decode().splitlines():
            return folder / name
        reason = f"{name} is not what was written"
    except (OSError, ValueError, UserError) as error:
        reason = str(error)
    raise UserError(f"{folder}: damaged: {reason}. Remove this folder; the next start rebuilds it")


def load_rows(folder: Path, split: str) -> Dataset:
    return Dataset.from_file(str(checked_file(folder, f"{split}.arrow")))


def save_report(folder: Path, report: dict[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def load_report(folder: Path) -> dict[str, Any]:
    return json.loads(checked_file(folder, "report.json").read_text(encoding="utf-8"))
