"""Small corpora, and the files and rows that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets

from tests.support.configurations import tokenizer_config
from translator.config.building import build
from translator.config.corpora import corpora_of
from translator.config.data import DataConfig
from translator.data.cleaning import Counts, HeldOut, Section, clean
from translator.data.preparation import Corpus, prepare
from translator.runs.training_state import TrainingState

PAIRS = [
    (f"{subject} {verb} {count} {thing}.", f"{wer} {tut} {zahl} {ding}.")
    for subject, wer in (("She", "Sie"), ("He", "Er"), ("My brother", "Mein Bruder"), ("The dog", "Der Hund"))
    for verb, tut in (("sees", "sieht"), ("wants", "will"), ("finds", "findet"), ("paints", "malt"))
    for count, zahl in (("two", "zwei"), ("three", "drei"), ("many", "viele"))
    for thing, ding in (("houses", "Häuser"), ("trees", "Bäume"), ("red apples", "rote Äpfel"), ("books", "Bücher"))
]


def section_of(rows: Any, config: DataConfig, counts: Counts) -> Section:
    """Rows as the section of the only corpus."""
    [corpus] = corpora_of(config)
    return Section(rows, corpus, counts)


def cleaned(rows: Any, config: DataConfig, held_out: HeldOut, counts: Counts) -> list[tuple[str, str]]:
    """The pairs that `clean` leaves."""
    tables = clean([section_of(rows, config, counts)], held_out)
    return [(row["source"], row["target"]) for table in tables for row in table.to_pylist()]


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """A TSV file of pairs with the columns en and de."""
    path.write_text("en\tde\n" + "".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    return path


def data_config(cache: Path | str = "x", **changes: object) -> DataConfig:
    plain = {
        "path": None, "config": None, "revision": None, "folder": None, "train": "x", "validation": None, "test": None,
        "source": "en", "target": "de", "holdout": 5, "limit": None, "max_characters": 200, "max_ratio": 3.0,
        "cache": str(cache)}
    return build(DataConfig, plain | changes)


def prepared_corpus(cache: Path, **changes: object) -> Corpus:
    return prepare(data_config(cache, **changes), tokenizer_config(), max_tokens=100)


def pairs_of(rows: datasets.Dataset | None) -> list[tuple[str, str]]:
    assert rows is not None
    return list(zip(rows["source"], rows["target"], strict=True))


def json_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


TRAINING_STATE = TrainingState(
    update=20, epoch=1, batch=3, tokens=900, seconds=1.5, validations=[{"update": 10, "loss": 2.5, "bleu": 3.0}],
    recorded={"metrics.jsonl": 0})


def write_corpus(folder: Path, copies: int = 1) -> Path:
    """Write rows: some are bad, some come twice, some share a sentence with others."""
    rows: list[tuple[object, object]] = [(f"{i} {s}", f"{i} {t}") for i in range(copies) for s, t in PAIRS]
    rows += [*PAIRS, *PAIRS[:50], (None, "a"), ("b", ""), ("a" * 2000, "b" * 2000), (PAIRS[0][0], "anderes"), (7, "sieben")]
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in rows * 2))
    return file
