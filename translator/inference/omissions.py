"""Signs that a translation lacks part of its source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from translator.text.writing_systems import split_sentences

# Warn if an output has less than this share of the expected tokens; sources with fewer tokens vary too much.
SHORT, LEAST_TOKENS = 0.4, 10
# Digits with what groups them: 25.50, 1,000, 7:30.
NUMBER = re.compile(r"\d+(?:[.,:'\u00a0\u202f]\d+)*")


def short_output(source: int, output: int, ratio: float) -> str:
    """Return a warning if an output is far too short, in tokens; ratio: target tokens per source token in training."""
    if source < LEAST_TOKENS or output >= SHORT * ratio * source:
        return ""
    return f"the translation may be incomplete: {output} tokens for {source} of the source"


def lost_numbers(source: str, output: str) -> str:
    """Return a warning that names the numbers of two or more digits that an output lacks, however it groups digits."""
    numbers = [(number, re.sub(r"\D", "", number)) for number in NUMBER.findall(source)]
    missing = Counter(digits for _, digits in numbers) - Counter(re.sub(r"\D", "", number) for number in NUMBER.findall(output))
    lost = dict.fromkeys(number for number, digits in numbers if digits in missing and len(digits) > 1)
    return f"numbers that the translation lacks: {', '.join(lost)}" if lost else ""


def joined_sentences(source: str, required: Sequence[str]) -> str:
    """Return a warning if several sentences were translated as one, as any of them may need the required phrase."""
    sentences = len(split_sentences(source)) if required else 1
    return f"the translation may be incomplete: required phrases keep {sentences} sentences together" if sentences > 1 else ""
