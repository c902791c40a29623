"""Sources begin with the sentences before them, of their own document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.configurations import run_config, tokenizer_config
from tests.support.corpora import PAIRS, data_config, json_lines, pairs_of, prepared_corpus, write_pairs
from translator.config.corpora import corpora_of
from translator.config.data import DataConfig
from translator.config.languages import SEPARATOR
from translator.data import sources
from translator.data.preparation import load_counts, load_split
from translator.data.sources import read, windows
from translator.pretrained.loading import Pretrained, adopt
from translator.runtime.errors import UserError
from translator.text.context import Context, with_context
from translator.text.tokenizer import train_tokenizer

LINES = [("A.", "a"), ("B.", "b"), ("C.", "c"), ("", ""), ("D.", "d"), ("B.", "b"), ("C.", "c")]
IN_CONTEXT = ["A.", "A. >>sep<< B.", "A. >>sep<< B. >>sep<< C.", "D.", "D. >>sep<< B.", "D. >>sep<< B. >>sep<< C."]


def two_files(folder: Path, pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    files = folder / "lines.en", folder / "lines.de"
    for side, file in enumerate(files):
        file.write_text("".join(pair[side] + "\n" for pair in pairs))
    return str(files[0]), str(files[1])


def config_of(folder: Path, pairs: Sequence[tuple[str, str]] = LINES, **changes: Any) -> DataConfig:
    held_out = str(write_pairs(folder / "held-out.tsv", PAIRS[:5]))
    named = {"train": two_files(folder, pairs), "validation": held_out, "test": held_out, "context": 2}
    return data_config(folder / "cache", **named | changes)


def test_a_context_is_that_of_the_document_and_its_length():
    context = Context(1)
    assert [context.before(line) + line for line in ("A.", "B.", "C.", " ", "D.")] == [
        "A.", "A. >>sep<< B.", "B. >>sep<< C.", " ", "D."]
    assert [context.before(line) + line for line in ("E.", ">>sep<< F.", "x >>sep<< G.", "H.")] == [
        "D. >>sep<< E.", ">>sep<< F.", "x >>sep<< G.", "G. >>sep<< H."]
    assert with_context(IN_CONTEXT[2], 1) == "B. >>sep<< C."
    assert with_context(IN_CONTEXT[2], 0) == "C."
    assert with_context(IN_CONTEXT[2], 9) == IN_CONTEXT[2]


@pytest.mark.parametrize("rows_at_once", [1, 2, 1000])
def test_sources_have_their_context_in_any_form(tmp_path, monkeypatch, rows_at_once):
    monkeypatch.setattr(sources, "READ_ROWS", rows_at_once)
    of_lines = read(config_of(tmp_path), "train")
    table = json_lines(tmp_path / "pairs.jsonl", [{"en": s or None, "de": t} for s, t in LINES])
    of_table = read(config_of(tmp_path, train=str(table)), "train")
    for rows in (of_lines, of_table):
        assert [source for source, _ in pairs_of(rows) if source] == IN_CONTEXT


def test_windows_of_a_stream_continue_a_document(tmp_path):
    found = islice(windows(config_of(tmp_path, window=2)), 3)
    assert [source for window in found for source in window["source"] if source] == IN_CONTEXT


def test_cleaning_judges_a_source_without_its_context(tmp_path):
    """Its own length, digits and copies; a held-out sentence after any other. Equal pairs in two contexts are two."""
    long = "This sentence is far longer than the three short ones, which follow it, and it has 4,711 in it."
    held_out, _ = PAIRS[0]
    pairs = [(long, "x"), ("A.", "a"), ("Bob.", "Bob."), (held_out, "anders"), ("B.", "b"), ("A.", "a"), ("", ""), ("A.", "a")]
    config = config_of(tmp_path, pairs, context=1, match_numbers="lenient", drop_copies=True, max_characters=len(long))
    assert list(load_split(config, "train")["source"]) == [
        f"{long} >>sep<< A.", "A. >>sep<< Bob.", f"{held_out} >>sep<< B.", "B. >>sep<< A.", "A."]
    dropped = load_counts(config)["train"][""].dropped
    assert dropped == {"length ratio": 1, "overlap with validation or test": 1, "empty": 1}


def test_the_separator_is_a_source_piece_but_no_language(tmp_path):
    files = two_files(tmp_path, [*PAIRS, *LINES])
    corpus = prepared_corpus(tmp_path / "cache", context=2, train=files)
    tokenizer = corpus.source_tokenizer
    assert tokenizer.tags == ()
    [ids] = tokenizer.encode(["She sees it. >>sep<< He >>sep<< My brother"])
    [own] = tokenizer.encode(["My brother"])
    assert ids[tokenizer.count_tags(ids) :] == own
    assert ids.count(tokenizer.separator) == 2
    assert tokenizer.count_tags(own) == 0
    [sampled] = tokenizer.sample(["She sees it. >>sep<< My brother"], alpha=0.1, seed=1)
    assert sampled.count(tokenizer.separator) == 1
    plain = prepared_corpus(tmp_path / "cache", train=files).source_tokenizer
    assert plain.separator is None
    assert plain.count_tags(plain.encode(["She >>sep<< He"])[0]) == 0


def test_a_corpus_of_a_mix_may_have_no_documents(tmp_path):
    train = list(two_files(tmp_path, LINES))
    corpora = [{"name": "a", "train": train}, {"name": "b", "train": train, "context": 0}]
    assert [corpus.context for corpus in corpora_of(data_config(train=None, context=2, corpora=corpora))] == [2, 0]
    with pytest.raises(UserError, match=r"data\.corpora, a: context: is more than data\.context=1"):
        corpora_of(data_config(train=None, context=1, corpora=[{"name": "a", "train": train, "context": 2}]))


@pytest.mark.parametrize(("changes", "words"), [
    ({"target": "de+fr"}, "context: is for one language"), ({"source": "en+fr"}, "context: is for one language"),
    ({"context": 10**6}, "data.context: must be less than or equal to 100"),
    ({"teacher": "x"}, "teacher: translates sentences without context")])
def test_what_context_does_not_go_with_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        data_config(**{"context": 1} | changes)


def test_a_vocabulary_without_separator_is_refused(tokenizer):
    config = run_config("data.context=1", "data.target=de")
    with_separator = train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config(), [SEPARATOR])
    adopt(config, Pretrained("x", config.model, config.tokenizer, (with_separator, with_separator), {}), [])
    with pytest.raises(UserError, match=r"data\.context: the vocabulary of x has no piece >>sep<<"):
        adopt(config, Pretrained("x", config.model, config.tokenizer, (tokenizer, tokenizer), {}), [])
