"""Words in any script: where they begin and end, and their normal form."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

# Thai to Burmese, Khmer, kana, Han: their letters neither begin nor end a word.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"



def is_unspaced(character: str) -> bool:
    """Return whether words that begin with this character have no space before them."""
    return re.match(f"[{UNSPACED}]", character) is not None


def whole_words(*phrases: str) -> re.Pattern[str]:
    """Return a pattern that finds these phrases in `normal` text, longest first, but not inside longer words."""
    letter = _letter()
    alternatives = "|".join(re.escape(normal(phrase)) for phrase in sorted(phrases, key=len, reverse=True))
    return re.compile(rf"(?:(?<!{letter})|(?!{letter}))(?:{alternatives})(?:(?!{letter})|(?<!{letter}))")


def goes_on(before: str, after: str) -> bool:
    """Return whether the text `after` continues the word that `before` ends with."""
    return is_word(before[-1:]) and is_word(after[:1])


def is_word(character: str) -> bool:
    """Return whether a character is of a word that spaces separate from others."""
    return re.match(_letter(), character) is not None


@cache
def _letter() -> str:
    """Return a pattern for characters of words: Python's, and marks on letters such as vowel signs, which Python leaves out."""
    marks = "".join(
        character for character in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(character).startswith("M"))
    return rf"(?:(?![{UNSPACED}])[\w{marks}])"


def normal(text: str) -> str:
    """Return a text as the vocabulary has it: NFKC, single spaces. Texts that look the same become equal."""
    return " ".join(unicodedata.normalize("NFKC", text).split())
