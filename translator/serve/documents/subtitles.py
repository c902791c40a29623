"""Subtitles in SubRip's format (.srt)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from translator.serve.documents.contents import Contents, decode

TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d+\s*-->\s*\d+:\d\d:\d\d[,.]\d+")
SPEAKER = re.compile(r"\s*[-\u2010-\u2015]")  # begins a line of dialogue
STYLE = re.compile(r"(?:(?:\{\\[^{}]*\})+\s*)?")  # {\an8}: where on the screen
LINE = re.compile(r"[^\n]*\n|[^\n]+")
WORD = re.compile(r"(?:<[^<>]*>|\S)+")  # with the tags in it


def parse_srt(content: bytes, most: int) -> Contents:
    """Parse subtitles: a cue is a text, or several where each of its lines is another speaker's. Times and numbers stay."""
    text, mark = decode(content, most)
    parts = list(_parts(LINE.findall(text)))
    if not any(lines for _, lines in parts):
        raise ValueError("holds no subtitles")

    def write(translations: Sequence[str]) -> bytes:
        left = iter(translations)
        return mark + "".join(kept + (_wrap(next(left), lines) if lines else "") for kept, lines in parts).encode()

    return Contents([" ".join(map(str.strip, lines)) for _, lines in parts if lines], write)


def _parts(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield what stays as written, and the lines of the text after it, in the order of the file."""
    kept, number = "", 0
    while number < len(lines):
        kept += lines[number]
        number += 1
        if not TIMES.match(lines[number - 1]):
            continue
        end = _end(lines, number)
        text = "".join(lines[number:end])
        style = STYLE.match(text).end()  # type: ignore[union-attr]  # it may match nothing
        kept += text[:style]
        for speech in _speeches(LINE.findall(text[style:])):
            yield kept, speech
            kept = ""
        number = end
    yield kept, []


def _end(lines: Sequence[str], start: int) -> int:
    """Return the number after a cue's lines: of an empty line or, where that is lacking, of the next cue."""
    for number in range(start, len(lines)):
        if not lines[number].strip():
            return number
        if TIMES.match(lines[number]):
            return number - (number > start and lines[number - 1].strip().isdecimal())
    return len(lines)


def _speeches(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the lines of each speaker: one line each if all begin with a dash, else all lines as one text."""
    if all(map(SPEAKER.match, lines)):
        yield from ([line] for line in lines)
    elif lines:
        yield list(lines)


def _wrap(translation: str, lines: Sequence[str]) -> str:
    """Return a translation in at most as many lines as its source had, of about equal length."""
    words, ends = WORD.findall(translation), [line[len(line.rstrip("\r\n")):] for line in lines]
    width = bisect_left(range(len(translation)), True, key=lambda width: len(_fill(words, width)) <= len(lines))
    return ends[0].join(_fill(words, width)) + ends[-1]


def _fill(words: Sequence[str], width: int) -> list[str]:
    """Join words to lines of at most `width` characters, except a longer word."""
    lines: list[list[str]] = []
    room = 0
    for word in words:
        if not lines or len(word) + 1 > room:
            lines.append([])
            room = width + 1
        lines[-1].append(word)
        room -= len(word) + 1
    return list(map(" ".join, lines))
