"""Letter case as training texts mostly have it, for sentences in capitals and in title case (truecasing)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# A word within a sentence, with letters on both sides of the space before it.
INNER_WORD = re.compile(r"(?<=\w )[^\W\d_]{2,}")

Cost = Callable[[str], float]  # of a word: how unusual its spelling is in training texts
WORD = re.compile(r"[^\W\d_](?:[\w'’]*\w)?")
# A sentence is in title case if it has this many words, and this share of them begins with a capital.
LEAST_WORDS, MOST_OF_THEM = 4, 0.8


def share_of_capitals(texts: Iterable[str]) -> float:
    """Return the share of words within sentences that begin with a capital: 0.04 in English, 0.17 or more in German."""
    words = [word for text in texts for word in INNER_WORD.findall(text) if not word.isupper()]
    return sum(word[0].isupper() for word in words) / max(1, len(words))


def in_capitals(text: str, cost: Cost) -> bool:
    """Return whether a text is all in capitals: several words, or one that training texts do not have so."""
    cased = [character for character in text if character.lower() != character.upper()]
    if len(cased) < 2 or not all(map(str.isupper, cased)):
        return False
    words = WORD.findall(text)
    return len(words) > 1 or any(cost(lowered(word)) < cost(word) for word in words)


def in_title_case(text: str, cost: Cost) -> bool:
    """Return whether nearly all words of a text begin with a capital, and training texts have two of them without."""
    words = WORD.findall(text)
    capitalised = [word for word in words if word[0].isupper() and (len(word) == 1 or not word.isupper())]
    if len(words) < LEAST_WORDS or len(capitalised) < MOST_OF_THEM * len(words):
        return False
    return sum(truecased(word, cost) != word for word in capitalised if word != words[0]) > 1


def truecased(word: str, cost: Cost) -> str:
    """Return a word in the least unusual case: `TOM` is Tom, `THE` is the, `NASA` stays. A word of mixed case stays too."""
    if not (word.isupper() or word.istitle()):
        return word
    small = lowered(word)
    return min((small, word[0] + small[1:], word), key=cost)


def sentence_case(text: str, cost: Cost) -> str:
    """Return a text of the same length with its words `truecased`, and a capital at its beginning."""
    first = WORD.search(text)

    def cased(match: re.Match[str]) -> str:
        word = truecased(match[0], cost)
        return match[0][0] + word[1:] if first and match.start() == first.start() else word

    return WORD.sub(cased, text)


def lowered(text: str) -> str:
    """Return a text of the same length in lower case. A letter whose small form is longer stays."""
    return "".join(small if len(small := character.lower()) == 1 else character for character in text)
