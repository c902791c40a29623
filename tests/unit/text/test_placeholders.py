"""Placeholders keep parts of a text: what they find, mask and fill in, and their pieces in the vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.configurations import tokenizer_config
from tests.support.corpora import PAIRS
from translator.text.placeholders import fill, find_spans, mask, numbers_in, placeholder
from translator.text.tokenizer import Tokenizer, narrow_target, train_tokenizer

TARGETS = [target for _, target in PAIRS]
TEXTS = [text for pair in PAIRS for text in pair]
# A sentence, and what it must keep.
KEPT = [
    ("My email is tom@example.com.", ["tom@example.com"]),
    ("It costs $25.50.", ["25.50"]),
    ("Open the %s file and the %(name)s, %d times.", ["%s", "%(name)s", "%d"]),
    ("Hello {name}, {} and {{ user }} use $1 and $HOME.", ["{name}", "{}", "{{ user }}", "$1", "$HOME"]),
    ("I ❤️ tea 😀 a lot.", ["❤️", "😀"]),
    ("See (https://example.org/a_(b)?q=1), or www.example.com/x!", ["https://example.org/a_(b)?q=1", "www.example.com/x"]),
    ("@anna says #hello to @tom@social.example.", ["@anna", "#hello", "@tom@social.example"]),
    ("Copy ./run.sh to /usr/local/bin or C:\\Temp\\a.txt now.", ["./run.sh", "/usr/local/bin", "C:\\Temp\\a.txt"]),
    ("Version v1.2.3 of report.pdf has 1,000 pages and 1999 words.", ["v1.2.3", "report.pdf", "1,000", "1999"]),
    ("Call +49 30 1234567 at 7:30 on 2024-05-01.", ["+49 30 1234567", "7:30", "2024-05-01"]),
    ("日本語のhttps://example.jp/aを見る。", ["https://example.jp/a"]),
    ("What does ⟦3⟧ mean?", ["⟦3⟧"]),
    ("Use 2.0.0-beta.1 or 1.0.0b2, not 1.2.3-rc1.", ["2.0.0-beta.1", "1.0.0b2", "1.2.3-rc1"]),
    ("Ask tom.o'neil@example.com on 1990-05-01T10:00:00Z.", ["tom.o'neil@example.com", "1990-05-01T10:00:00Z"]),
    (":smile: I like tea :tea_cup:", [":smile:", ":tea_cup:"]),
]
PLAIN = [
    "I was 15 when the 3rd of 20 people left.", "It is 5 p.m. now, e.g. in the U.S.",
    "He gave 100% or 20 %; and/or both, she said.",
    "Is it \"yes\" (or no): that's well-known?", "End.Then he goes on."]
TEXT = st.text(max_size=40) | st.lists(st.sampled_from([text for text, _ in KEPT] + list("⟦⟧19% .:@")), max_size=6).map("".join)


@pytest.mark.parametrize(("text", "kept"), KEPT)
def test_what_must_come_through_is_found(text, kept):
    assert [text[start:end] for start, end in find_spans(text)] == kept
    masked, values = mask(text, find_spans(text))
    assert values == tuple(kept)
    assert numbers_in(masked) == list(range(1, 1 + len(kept)))


def test_ordinary_words_and_small_numbers_are_not_masked():
    assert [text[start:end] for text in PLAIN for start, end in find_spans(text)] == ["100"]


@given(TEXT)
@example("".join(f"⟦{number % 9 + 1}⟧ " for number in range(12)))
@example("⟦1⟧%s⟦2⟧")
def test_filling_undoes_masking(text):
    masked, values = mask(text, find_spans(text))
    assert fill(masked, values) == text
    assert len(values) <= 9


def test_placeholders_fill_in_any_order_and_others_stay():
    assert fill("⟦2⟧, ⟦1⟧ and ⟦3⟧", ["a", "⟦2⟧"]) == "⟦2⟧, a and ⟦3⟧"


@pytest.fixture(scope="module", params=["unigram", "bpe", "no bytes", "separate"])
def sides(request) -> tuple[Tokenizer, Tokenizer]:
    options = tokenizer_config(
        placeholders=9, model_type="bpe" if request.param == "bpe" else "unigram", byte_fallback=request.param != "no bytes",
        vocab_size=110 if request.param == "no bytes" else 340)
    if request.param == "unigram":
        return narrow_target(train_tokenizer(TEXTS, options), TARGETS)
    return train_tokenizer(TEXTS, options), train_tokenizer(TARGETS, options)


def test_each_placeholder_is_one_piece_of_both_vocabularies(sides):
    pieces = tuple(map(placeholder, range(1, 10)))
    for side in sides:
        assert sorted(side.placeholders) == list(pieces)
        for text in ("The ⟦1⟧ dog⟦9⟧.", "⟦5⟧", "$⟦2⟧km ⟦1⟧⟦3⟧"):
            [ids] = side.encode([text])
            assert numbers_in("".join(piece for piece in side.pieces(ids) if piece in pieces)) == numbers_in(text)


def test_sampling_keeps_placeholders_in_one_piece():
    tokenizer = train_tokenizer(TEXTS, tokenizer_config(placeholders=2))
    texts = ["⟦1⟧ is a ⟦2⟧.", "No ⟦2⟧⟦1⟧"]
    for text, ids in zip(texts, tokenizer.sample(texts, alpha=0.01, seed=1), strict=True):
        assert numbers_in("".join(p for p in tokenizer.pieces(ids) if p in tokenizer.placeholders)) == numbers_in(text)


def test_a_vocabulary_has_no_placeholders_unless_asked():
    assert train_tokenizer(TEXTS, tokenizer_config()).placeholders == ()
