"""Texts are split where sentences end, lose nothing, take linear time, and are joined again as they were spaced."""

from __future__ import annotations

import re
import time

import pytest
import sentences as bench
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import SHARED_DATASETS
from translator.text.sentence_splitter import rejoined, space_behind, split_clauses, split_sentences

TEXTS = st.text(alphabet="aBi1 \n\t\u00a0\u3000.!?…。！？।\"'”“«»)(„」-•,:@/字é😀", max_size=60)
# Repeated, they make careless patterns quadratic.
HOSTILE = [
    "a.a.", "a. a. ", "A. A. ", "(((", " ", "\n", " \n", "\t", "...", ". . ", '."', "! ", "?)", "«", " »", "a?B", "1. ", "x",
    "。", "。」", "字。", ":)", ". :)", "😀", ". 😀", "• ", "Dr. ", "a.b@c.d/", '"Why?" said ', "a.\u00a0", "'", "Mr.B", ". ¿"]


@pytest.mark.parametrize("language", sorted({text.language for text in bench.hand_written()}))
def test_sentences_end_where_a_reader_would_say(language):
    known = ["|".join(text.sentences) for text in bench.hand_written() if text.language == language]
    assert ["|".join(split_sentences(marked.replace("|", ""))) for marked in known] == known


@pytest.mark.parametrize("text", ["", " ", "no end", "Mr. Smith met J. Doe.", "e.g. this one", "!", "...", "one,\ttwo"])
def test_a_text_without_an_end_inside_stays_whole(text):
    assert split_sentences(text) == [text]


def test_line_breaks_end_sentences():
    assert split_sentences("one\n\n two\r\nthree.\nfour\n") == ["one\n\n ", "two\r\n", "three.\n", "four\n"]


@pytest.mark.skipif(not SHARED_DATASETS.exists(), reason=f"needs the corpora in {SHARED_DATASETS}")
@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "cs"])
def test_joined_rows_of_corpora_are_split_again(language):
    counts = bench.Counts()
    for text in bench.joined_rows(SHARED_DATASETS, 300, {language}):
        counts.add(bench.ends(text.sentences), bench.ends(split_sentences("".join(text.sentences))))
    assert counts.texts >= 300
    assert counts.right >= 0.99 * counts.found  # the rest are rows that hold two sentences
    assert counts.right >= 0.99 * counts.known


@given(TEXTS)
def test_sentences_put_together_are_the_text(text):
    parts = split_sentences(text)
    assert "".join(parts) == text
    assert all(part[:1].strip() for part in parts[1:])  # none begins with a space


@pytest.mark.parametrize("piece", HOSTILE)
def test_any_text_is_split_in_linear_time(piece):
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        start = time.process_time()
        assert "".join(split_sentences(text)) == text
        return time.process_time() - start

    assert seconds(32_000) < 20 * max(seconds(4_000), 0.005)  # a quadratic one takes 64 times as long


# Clauses


@given(st.text(alphabet="ab ,，字\u3000", max_size=80))
def test_clauses_fit_and_put_together_are_the_text(text):
    parts = split_clauses(text, lambda part: len(part) <= 10)
    assert "".join(parts) == text
    for part in parts:
        assert len(part) <= 10 or not re.search(r"\S\s+\S|，\S|字字", part), part


def test_clauses_are_split_at_commas_before_spaces():
    text = "one two, three four five six seven eight nine ten, eleven twelve"
    parts = split_clauses(text, lambda part: len(part.split()) <= 4)
    assert parts == ["one two, ", "three four five six ", "seven eight nine ten, ", "eleven twelve"]
    assert split_clauses("私は東京に住む。", lambda part: len(part) <= 4) == ["私は東京", "に住む。"]


def test_clauses_are_split_far_from_the_middle():
    long = "x" * 30
    assert split_clauses(f"a b c {long} d e f", lambda part: len(part) <= 12) == ["a b c ", f"{long} ", "d e f"]
    assert split_clauses(f"{long} a, b", lambda part: len(part) <= 12) == [f"{long} ", "a, b"]


def test_clauses_of_a_long_text_are_balanced():
    text = "word " * 10_000
    parts = split_clauses(text, lambda part: len(part) <= 200)
    assert "".join(parts) == text
    assert min(map(len, parts)) >= 95


# Joined again


@pytest.mark.parametrize(("source", "translations", "joined"), [
    ("One. Two.", ["Eins.", "Zwei."], "Eins. Zwei."), ("One.  Two.", ["Eins.", "Zwei."], "Eins.  Zwei."),
    ("One.\tTwo.\nThree.", ["Eins.", "Zwei.", "Drei."], "Eins.\tZwei.\nDrei."),
    ("One. Two. Three.", ["Eins.", "", "Drei."], "Eins. Drei."), ("One. Two.", ["", "Zwei."], "Zwei."),
    ("One. Two.", ["一つ。", "二つ。"], "一つ。二つ。"), ("一つ。二つ。", ["One.", "Two."], "One. Two."),
    ("一つ。\u3000二つ。", ["One.", "Two."], "One. Two."), ("一つ！\u3000二つ。", ["一！", "二。"], "一！\u3000二。"),
    ("One!\nTwo.", ["一つ！", "二つ。"], "一つ！\n二つ。"), ("Wow! Next.", ["すごい!", "次。"], "すごい!次。"),
    ("It is tea.Good!", ["Das ist Tee.", "Gut!"], "Das ist Tee. Gut!")])
def test_translations_are_spaced_as_their_sources(source, translations, joined):
    sentences = split_sentences(source)
    assert rejoined(translations, map(space_behind, sentences)) == joined


@given(TEXTS)
def test_sentences_rejoined_lose_only_outer_space(text):
    parts = split_sentences(text)
    again = rejoined([part.strip() for part in parts], map(space_behind, parts))
    assert "".join(again.split()) == "".join(text.split())
