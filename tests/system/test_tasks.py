"""Text to text that is no translation: the same commands learn to summarise and to answer."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import json_lines

NAMES, PLACES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus"), ("Oslo", "Rome", "Lima")
THINGS = ("a lamp", "a kite", "two cups", "some soap", "a map", "three hats", "bread")
FILLING = "It rained all day. "


def summaries() -> list[dict[str, str]]:
    return [
        {"document": f"{FILLING}{name} went to {place}. {FILLING}There, {name} bought {thing}. {FILLING}",
         "summary": f"{name}: {thing}."}
        for name, thing, place in itertools.product(NAMES, THINGS, PLACES)]


def answers() -> list[dict[str, str]]:
    return [
        {"asked": f"question: {question} context: {name} bought {thing} in {place}.", "answer": answer}
        for name, thing, place in itertools.product(NAMES, THINGS, PLACES)
        for question, answer in ((f"Where was {name}?", place), (f"What did {name} buy?", thing))]


def held_out(row: dict[str, str]) -> bool:
    """Whether a row is for testing."""
    return any(all(word in " ".join(row.values()) for word in words) for words in (("Ada", "kite"), ("Dan", "cups")))


@pytest.mark.parametrize(("rows", "options"), [
    (summaries(), ["data.source=document", "data.target=summary", "data.max_ratio=100"]),
    (answers(), ["data.source=asked", "data.target=answer", "data.max_ratio=100", "data.overlap=source"]),
], ids=["summaries", "answers"])
def test_two_text_columns_of_any_kind_are_learned(script, tmp_path: Path, rows, options):
    train = json_lines(tmp_path / "train.jsonl", [row for row in rows if not held_out(row)])
    test = json_lines(tmp_path / "test.jsonl", [row for row in rows if held_out(row)])
    result = script(
        "train", "data=files", f"data.train={train}", f"data.validation={test}", f"data.test={test}", *options,
        f"data.cache={tmp_path / 'cache'}", f"runs={tmp_path}", "name=run", *TINY, "model.d_model=64", "model.d_ff=128",
        "model.dropout=0", "tokenizer.vocab_size=300", "train.label_smoothing=0", "train.max_epochs=null",
        "train.max_minutes=null", "train.max_updates=200", "train.validate_every=200", "train.average=none",
        "train.batch_tokens=2048", "optim.warmup_updates=20", "optim.weight_decay=0.3", timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    outputs, references = (
        (tmp_path / "run" / "evaluation-test" / f"{name}.txt").read_text().splitlines() for name in ("hypothesis", "reference"))
    right = sum(a == b for a, b in zip(outputs, references, strict=True))
    assert right > 0.6 * len(references), result.stderr.decode()
    short = "data.target=answer" in options  # one or two words, which BLEU cannot score
    assert (b"BLEU" in result.stderr, b"exact" in result.stderr) == (not short, short)
