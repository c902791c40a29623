"""Split texts into sentences and long sentences into clauses, and join them again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from translator.text.writing_systems import UNSPACED

# Kana, Han and their marks: no space between sentences either.
_EAST_ASIAN = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0002fa1f]")
# A mark that ends sentences, with closing quotes and brackets; then space, unless the script has none.
BOUNDARY = re.compile(
    r"""(?P<end>(?<![.!?…؟।۔])[.!?…؟।۔]++["'»«”“’‘)\]]*+)\s++(?=(?P<next>\S+))"""
    r"""|(?<![。！？])[。！？]++[」』”’）]*+\s*+(?=\S)|\s*\n\s*+(?=\S)""")
# A title or an initial comes before a name: Dr. Müller, J. Smith, U.S. Army, e.g. this. Not: 5 p.m. Then, you and I. We.
ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'„“«-])(?:Mrs?|Ms|Dr|Prof|Ing|St|Mt|Ft|Gen|Maj|Col|Capt|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Hr|Fr|Sra?|Srta|Dra|Mme|Mlle"
    r"|vs|bzw|ca|approx)\.$|(?:^|[\s.(\"'„“«])(?!I|(?<=[ap]\.)m)[^\W\d_]\.$", re.IGNORECASE)
# Before a number: No. 5, p. 12, Abb. 3, Jan. 5.
BEFORE_NUMBER = re.compile(
    r"(?:^|[\s(])(?:Nos?|Nr|pp?|S|vol|fig|Abb|art|Abs|Kap|ch|núm|pág|č|Tel|\w*Str|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|O[ck]t|Nov|De[cz]"
    r"|Mon|Tues?|Wed|Thu|Fri|Sat|Sun)\.$", re.IGNORECASE)
# The number of a list item; a German ordinal: am 12. Oktober, der 2. Weltkrieg.
ITEM = re.compile(r"\s*\d{1,2}\.\s*")
ORDINAL = re.compile(
    r"\b(?:der|die|das|de[mns]|im|zu[mr]|vom|beim|(?<!I )am|mein|dein|sein|ihr|unser)\s\d{1,2}\.$", re.IGNORECASE)
# Where a clause may end, the best places first: after its mark, between words, between characters that need no space.
BREAKS = tuple(map(re.compile, (
    r"[,;:，、；：،؛]\s+|[，、；：]|\s[-–—]+\s+", r"\s+", f"[{UNSPACED}](?=[{UNSPACED}])")))


def rejoined(sentences: Sequence[str]) -> str:
    """Join sentences, with a space between two of them unless their script has none."""
    text = ""
    for sentence in filter(None, sentences):
        unspaced = not text or _EAST_ASIAN.match(text[-1]) or _EAST_ASIAN.match(sentence)
        text += sentence if unspaced else f" {sentence}"
    return text


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, each with the space that follows it: joined, they are the text."""
    sentences, start = [], 0
    for match in BOUNDARY.finditer(text):
        if match["next"] and not _ends_sentence(text, start, match):
            continue
        sentences.append(text[start : match.end()])
        start = match.end()
    return [*sentences, text[start:]] if text[start:] or not sentences else sentences


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Return whether the mark in `match` ends the sentence that begins at `start`."""
    following = match["next"]
    if following[0].islower() and text != text.lower():  # a text without capitals starts sentences without
        return False
    # The longest abbreviation has 12 characters with the word before it.
    before = text[max(start, match.end("end") - 12) : match.end("end")]
    if ABBREVIATION.search(before) or (following[0].isdigit() and BEFORE_NUMBER.search(before)):
        return False
    return not (ITEM.fullmatch(text, start, match.end("end")) or ORDINAL.search(before))


def split_clauses(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Return the parts of a text, halved until each `fits` or has no place to break: joined, they are the text."""
    middle = None if fits(text) else _middle(text)
    if middle is None:
        return [text]
    return [*split_clauses(text[:middle], fits), *split_clauses(text[middle:], fits)]


def _middle(text: str) -> int | None:
    """Return where to halve a text: at the best kind of break within its middle half, nearest to the middle."""
    for places in BREAKS:
        ends = (match.end() for match in places.finditer(text))
        inner = [end for end in ends if len(text) <= 4 * end <= 3 * len(text)]
        if inner:
            return min(inner, key=lambda end: abs(2 * end - len(text)))
    return None
