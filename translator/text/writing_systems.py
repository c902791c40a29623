"""Scripts that put no spaces between words, or between sentences."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache

# Thai to Burmese, Khmer, kana, Han: their letters neither begin nor end a word.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
# Kana, Han and their marks: no space parts sentences either.
_EAST_ASIAN = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0002fa1f]")


def is_unspaced(character: str) -> bool:
    """Whether no space comes before a word that begins with it."""
    return re.match(f"[{UNSPACED}]", character) is not None


def whole_words(*phrases: str) -> re.Pattern[str]:
    """Finds any of these phrases in what is `normal`, the longest where several fit, but not as a part of a longer word."""
    letter = _letter()
    any_of_them = "|".join(re.escape(normal(phrase)) for phrase in sorted(phrases, key=len, reverse=True))
    return re.compile(rf"(?:(?<!{letter})|(?!{letter}))(?:{any_of_them})(?:(?!{letter})|(?<!{letter}))")


def goes_on(before: str, after: str) -> bool:
    """Whether a text goes on with the word that the one before it ends."""
    return all(re.match(_letter(), character) for character in (before[-1:], after[:1]))


@cache
def _letter() -> str:
    """Finds a character of a word: what Python takes for one, and marks on letters, such as vowel signs, which it does not."""
    every = map(chr, range(sys.maxunicode + 1))
    marks = "".join(character for character in every if unicodedata.category(character).startswith("M"))
    return rf"(?:(?![{UNSPACED}])[\w{marks}])"


def normal(text: str) -> str:
    """As the vocabulary has it, so that what looks alike is alike: one form of each character (NFKC), single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def rejoined(sentences: Sequence[str]) -> str:
    """Sentences as one text, a space between two of them where their script has it."""
    text = ""
    for sentence in filter(None, sentences):
        together = not text or _EAST_ASIAN.match(text[-1]) or _EAST_ASIAN.match(sentence)
        text += sentence if together else f" {sentence}"
    return text
