"""Where a translation and its reference differ, word by word."""

from __future__ import annotations

import itertools
from difflib import SequenceMatcher

from translator.text.writing_systems import is_word


def mark_differences(text: str, other: str) -> list[tuple[str, bool]]:
    """Return the text in parts, each with whether its words are missing, or in another place, in the other text.

    Letters of scripts without spaces are compared one by one.
    """
    units, words = _units(text), [unit for unit in _units(other) if not unit.isspace()]
    numbers = [number for number, unit in enumerate(units) if not unit.isspace()]
    matcher = SequenceMatcher(None, words, [units[number] for number in numbers], autojunk=False)
    differs = dict.fromkeys(numbers, True)
    for block in matcher.get_matching_blocks():
        differs |= dict.fromkeys(numbers[block.b : block.b + block.size], False)
    for number in range(len(units)):  # a space differs between words that do
        differs.setdefault(number, differs.get(number - 1, False) and differs.get(number + 1, False))
    return [("".join(units[number] for number in run), different)
            for different, run in itertools.groupby(range(len(units)), key=lambda number: differs[number])]


def _units(text: str) -> list[str]:
    """Return words and spaces, and all other characters one by one."""
    runs = itertools.groupby(text, key=lambda character: "word" if is_word(character) else " " if character.isspace() else "")
    return [unit for kind, run in runs for unit in (["".join(run)] if kind else run)]
