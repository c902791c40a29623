"""What stands around a sentence and needs no translation: bullets, numbers, names, quotes, brackets, runs of marks, emoji."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from translator.text.placeholders import EMOTICON, PICTURE

ENDS = ".!?…。！？．؟।"
# A bullet, the number of an item (1. 2) (3) a)), the letter of a speaker (Q:), emoji, emoticons.
FRONT = re.compile(
    rf"(?:[-–—*+•‣⁃◦·●○■□▪▫►▸✓✔>#]+|\(?(?:\d{{1,3}}|[^\W\d_])\)|\d{{1,3}}\.|[^\W\d_]:)\s+(?=\S)|{PICTURE}\s*|{EMOTICON}\s+")
LABEL = re.compile(r"((?!\d)\w+(?: (?!\d)\w+)?):\s+(?=\S)")
BACK = re.compile(rf"(?<!\s)\s*+{PICTURE}$|(?<!\s)\s++{EMOTICON}$")
RUN = re.compile(r"(?:[!?！？‼⁇⁈⁉]{2,}|\.{4,}|[。．]{2,})$")
BRACKETS = {"(": ")", "[": "]", "（": "）", "［": "］", "「": "」", "『": "』", "【": "】", "《": "》", "〈": "〉"}
# Not plain double quotes, in whose place a model writes its language's own.
QUOTES = {"“": "”", "”": "”", "„": "“”", "‟": "”", "«": "»", "»": "«", "‘": "’",
          "‚": "‘’", "‹": "›", "›": "‹", "'": "'"}
DOUBLE = "“”„‟«»"
ANY_DOUBLE = DOUBLE + '"'


class Peeled(NamedTuple):
    """A sentence without what stands around it."""

    text: str
    front: str = ""
    back: str = ""
    replaces_end: bool = False  # `back` begins with the end mark; the text has one of its own in its place


def peel(sentence: str, is_name: Callable[[str], bool]) -> Peeled:
    """Take apart a sentence without space at its ends. The name of a speaker, `Anna: `, is set aside if `is_name` says so."""
    peeled = Peeled(sentence)
    while True:
        inner = next((inner for inner in _layers(peeled, is_name) if any(map(str.isalnum, inner.text))), None)
        if inner is None:
            return _single_mark(peeled)
        if inner.replaces_end:
            return inner
        peeled = inner


def _layers(peeled: Peeled, is_name: Callable[[str], bool]) -> Iterator[Peeled]:
    """Yield the text without one more layer, for each kind that it has."""
    text, front, back, _ = peeled
    if match := FRONT.match(text) or ((label := LABEL.match(text)) and is_name(label[1]) and label):
        yield Peeled(text[match.end() :], front + match[0], back)
    if match := BACK.search(text):
        yield Peeled(text[: match.start()], front, match[0] + back)
    first, last = text[:1], text[-1:]
    end = last if last and last in ENDS else ""
    closed = text.removesuffix(end)
    if closed[-1:] and closed[-1] in (BRACKETS | QUOTES).get(first, ""):
        inner = closed[1:-1]
        if (text := inner.strip()) and _is_closed(inner, first, closed[-1]):
            opening, closing = inner.partition(text)[::2]
            own = end and not text.endswith(tuple(ENDS))
            yield Peeled(text + end if own else text, front + first + opening, closing + closed[-1] + end + back, bool(own))
    elif sum(map(text.count, ANY_DOUBLE)) == 1 and first in DOUBLE:
        text = text[1:].lstrip()
        yield Peeled(text, front + peeled.text.removesuffix(text), back)
    elif sum(map(text.count, ANY_DOUBLE)) == 1 and last in DOUBLE:
        text = text[:-1].rstrip()
        yield Peeled(text, front, peeled.text.removeprefix(text) + back)


def _is_closed(inner: str, opening: str, closing: str) -> bool:
    """Return whether marks around a text belong together: those in it are in pairs, as in (a (b) c), or apostrophes."""
    if opening in BRACKETS:
        depth = 0
        for character in inner:
            depth += (character == opening) - (character == closing)
            if depth < 0:
                return False
        return depth == 0
    if opening in DOUBLE:
        return not any(mark in inner for mark in ANY_DOUBLE)
    return not re.search(r"(?<!\w)['‘’‚‹›]|['‘‚‹›](?!\w)", inner)


def _single_mark(peeled: Peeled) -> Peeled:
    """Leave one mark of a run, `!!!`, at the end."""
    match = RUN.search(peeled.text)
    if not match:
        return peeled
    run = match[0]
    mark = "..." if run[0] == "." else "?" if "?" in run else run[0]
    return Peeled(peeled.text[: match.start()] + mark, peeled.front, run + peeled.back, True)
