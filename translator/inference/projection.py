"""Which characters of a translation go with which of its source, by word alignment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from translator.text.writing_systems import UNSPACED, normal

WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
CORE = re.compile(r"[\W_]*(?P<core>.*?)[\W_]*", re.DOTALL)  # a word without the marks around it
Range = tuple[int, int]


@dataclass(frozen=True)
class WordAlignment:
    """The words of a source and of its translation as a model has them, and pairs of their numbers, from 0."""

    source: Sequence[str]
    target: Sequence[str]
    links: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Atom:
    """Characters of a translation and the source characters that they are aligned to, if any."""

    start: int
    end: int
    source: Range | None


def project(source: str, target: str, alignment: WordAlignment, cuts: Sequence[int]) -> list[Atom]:
    """Return the parts of a translation in order, each with the part of the source it is aligned to.

    Parts are words without marks, and the marks. The copy of a word is cut where tags cut the word.
    """
    source_words, target_words = ([match.span() for match in WORD.finditer(text)] for text in (source, target))
    from_model = _matched(alignment.source, [source[slice(*span)] for span in source_words])
    to_text = _matched(alignment.target, [target[slice(*span)] for span in target_words])
    origin: dict[int, int] = {}
    for s, t in alignment.links:
        for word in to_text.get(t, ()):
            for of in from_model.get(s, ()):
                best = origin.setdefault(word, of)
                if _text(target, target_words[word]) == _text(source, source_words[of]) != _text(source, source_words[best]):
                    origin[word] = of
    atoms: list[Atom] = []
    for number, span in enumerate(target_words):
        if number in origin:
            atoms += _parts(source, source_words[origin[number]], target, span, cuts)
        else:
            atoms.append(Atom(*span, None))
    return atoms


def _matched(words: Sequence[str], of_text: Sequence[str]) -> dict[int, list[int]]:
    """Return the numbers of a text's words for each of the model's words, which may be spelled differently."""
    flat = [(part, number) for number, word in enumerate(words) for part in WORD.findall(word)]
    found: dict[int, list[int]] = {}
    ours, theirs = (list(map(_core, side)) for side in ([part for part, _ in flat], of_text))
    for _, i1, i2, j1, j2 in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        rows, columns = i2 - i1, j2 - j1
        for row in range(rows if columns else 0):
            first = j1 + row * columns // rows
            last = max(first + 1, j1 + -(-(row + 1) * columns // rows))
            found.setdefault(flat[i1 + row][1], []).extend(range(first, last))
    return found


def _core(word: str) -> str:
    """Return a word in lower case without the marks around it, or the marks if it has nothing else."""
    word = normal(word).casefold()
    match = CORE.fullmatch(word)
    return (match and match["core"]) or word


def _parts(source: str, of: Range, target: str, span: Range, cuts: Sequence[int]) -> list[Atom]:
    """Align a word's core and the marks before and after it to the core and the marks of a source word."""
    bounds = [_bounds(source, of), _bounds(target, span)]
    if any(core_start == core_end for _, core_start, core_end, _ in bounds):  # one has marks only
        bounds = [(start, start, end, end) for start, end in (of, span)]
    atoms = []
    for (s1, s2), (t1, t2) in zip(*map(pairwise, bounds), strict=True):
        if source[s1:s2].casefold() == target[t1:t2].casefold() and s2 - s1 == t2 - t1:
            places = [s1, *(cut for cut in cuts if s1 < cut < s2), s2]
            atoms += [Atom(a - s1 + t1, b - s1 + t1, (a, b)) for a, b in pairwise(places) if a < b]
        elif t1 < t2:
            atoms.append(Atom(t1, t2, (s1, s2) if s1 < s2 else None))
    return atoms


def _bounds(text: str, word: Range) -> tuple[int, int, int, int]:
    match = CORE.fullmatch(text, *word)
    assert match
    return word[0], *match.span("core"), word[1]


def _text(text: str, span: Range) -> str:
    return text[slice(*span)].casefold()
