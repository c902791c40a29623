"""Identify the language of a text by py3langid: naive Bayes over byte n-grams (Lui and Baldwin 2012).

https://aclanthology.org/P12-3005
Its model of 140 languages is part of that package. Loading it takes half a second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from translator.runtime.console import log

# ISO 639 counts these as one language each, or sentences do not tell them apart.
SAME = {
    "yue": "zh", "wuu": "zh", "nb": "no", "nn": "no", "ary": "ar", "arz": "ar", "bs": "sh", "hr": "sh", "sr": "sh", "id": "ms",
    "pcm": "en"}
NO_LANGUAGE = "zxx"  # py3langid's code for texts such as code and random letters
# A text is foreign if another language is this many times as likely as each expected one. None of 10,059 test sentences of
# Tatoeba and Multi30k in five languages is foreign where its own is expected.
TIMES = 10
# Bytes of words without a capital that it takes to judge a text: names are of no language.
EVIDENCE = 8
CODE = re.compile(r"([a-z]{2})(?:[-_]|$)")
WORD = re.compile(r"[^\W\d_]+")


def code_of(name: str) -> str:
    """Return the code of a language by its name in options, such as `en` or `en-US`; empty for a name without a known code."""
    code = CODE.match(name.lower())
    return code[1] if code and (code[1] in SAME or code[1] in _identifiers().result()[0].labels) else ""


def rank_languages(text: str) -> dict[str, float]:
    """Return the probability of each language by its code, likeliest first; they sum to 1."""
    return dict(_identifiers().result()[1].rank(text))


def likeliest(text: str) -> str:
    """Return the code of the likeliest language of a text, sooner than with probabilities."""
    return str(_identifiers().result()[0].classify(text)[0])


def preload(names: Sequence[str]) -> None:
    """Begin to load the model where these languages may have codes, so that the first question waits less."""
    if all(map(CODE.match, map(str.lower, names))):
        _identifiers()


def foreign(text: str, expected: tuple[str, ...], times: float = TIMES) -> str:
    """Return the code of the language that a text is in; empty if that is, or may be, one of those expected.

    expected: names of languages, as in options. With one that is no known code, nothing is foreign.
    times: how many times as likely as each expected language another must be.
    """
    codes = _codes(expected)
    if not codes or _evidence(text) < EVIDENCE or _merged(likeliest(text)) in codes:
        return ""
    probabilities: dict[str, float] = {}
    for code, probability in rank_languages(text).items():
        probabilities[_merged(code)] = probabilities.get(_merged(code), 0.0) + probability
    best = max(probabilities, key=lambda code: probabilities[code])
    if best == NO_LANGUAGE or probabilities[best] < times * max(probabilities[code] for code in codes):
        return ""
    return next(code for code in rank_languages(text) if _merged(code) == best)


def name_of(code: str) -> str:
    """Return a language's name in English, or the code itself if it is not a language's."""
    from babel import Locale, UnknownLocaleError  # takes a while

    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def _evidence(text: str) -> int:
    """Return the bytes of the words that do not begin with a capital, unless all are capitals."""
    words = WORD.findall(text.lower() if text.isupper() else text)
    return sum(len(word.encode()) for word in words if not word[0].isupper())


def _merged(code: str) -> str:
    return SAME.get(code, code)


@cache
def _codes(names: tuple[str, ...]) -> frozenset[str]:
    """Return the merged codes of languages; none if one has no known code, or if the model cannot be loaded."""
    try:
        codes = frozenset(_merged(code_of(name)) for name in names)
    except (OSError, MemoryError) as error:  # it goes through a temporary file
        log(f"warning: the languages of texts are not checked: {error}")
        return frozenset()
    return frozenset() if "" in codes else codes


@cache
def _identifiers() -> Future[tuple[Any, Any]]:
    """Load two identifiers of the same model in a thread: for scores, and for probabilities."""
    return ThreadPoolExecutor(1).submit(_load)


def _load() -> tuple[Any, Any]:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # not at the start of commands that do not ask

    one = LanguageIdentifier.from_model_file(MODEL_FILE)
    return one, LanguageIdentifier(
        one.nb_ptc, one.nb_pc, one.nb_classes, one.tk_nextmove, one.tk_output, norm_probs=True, tk_row=one.tk_row)
