"""Filters for noisy training pairs, one rule each. To add a rule: its entry in RULES, and its option in conf/data."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html.entities import html5
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from translator.config.data import DataConfig
from translator.config.languages import split_tag
from translator.runtime.errors import one_line
from translator.text.language import foreign
from translator.text.writing_systems import is_unspaced

LONGEST_PHRASE = 24  # that is found to repeat, in bytes
JUDGED_CHARACTERS = 10  # shorter texts may have any share of letters
IDENTIFIED_CHARACTERS = 40  # shorter texts may be in any language: names and greetings look alike in many

Pair = tuple[str, str]
Columns = tuple[pa.Array, pa.Array]  # sources without tags, targets

WORD = re.compile(r"[^\W\d_]+")
GROUPED = re.compile(r"\d{1,3}(?:[.,'’\s\u066c]\d{3})+(?!\d)|\d+")  # a number, with what groups its digits by thousands
ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?:https?://|www\.)[^\s<>\"]+", re.IGNORECASE)
ELEMENTS = (
    "a|abbr|b|big|blockquote|body|br|center|code|dd|div|dl|dt|em|font|form|h[1-6]|head|hr|html|i|iframe|img|input|label|li|link"
    "|meta|ol|option|p|pre|s|script|select|small|span|strike|strong|style|sub|sup|table|tbody|td|textarea|th|thead|title|tr|tt|u|ul")
MARKUP = re.compile(rf"</?(?:{ELEMENTS})(?=[\s/>])[^<>]*>|&(?:#\d+|#x[\da-f]+|[a-z]\w+);", re.IGNORECASE)


class Sides(NamedTuple):
    """The texts of a pair, and the language tag that its source begins with, which may be empty."""

    source: str
    target: str
    tag: str


@dataclass(frozen=True)
class Rule:
    """A cause to drop a pair."""

    cause: str  # as in data_report.json
    option: str  # of DataConfig; the rule is off where it is false, zero or null
    suspects: Callable[[Columns, Any], Any]  # marks, fast, all rows that may break the rule, by the option's value
    breaks: Callable[[Sides, DataConfig], bool]  # judges a suspect


def noise(pairs: Sequence[Pair], config: DataConfig) -> list[str]:
    """Return for each pair of texts with single spaces the cause of the first rule that it breaks, or an empty text."""
    causes = [""] * len(pairs)
    rules = [rule for rule in RULES if getattr(config, rule.option)]
    if not rules or not pairs:
        return causes
    split = [split_tag(source) if config.tags or config.context else ("", source) for source, _ in pairs]
    columns = pa.array([source for _, source in split], pa.string()), pa.array([target for _, target in pairs], pa.string())
    for rule in rules:
        for row in np.flatnonzero(rule.suspects(columns, getattr(config, rule.option))).tolist():
            if not causes[row] and rule.breaks(Sides(split[row][1], pairs[row][1], split[row][0]), config):
                causes[row] = rule.cause
    return causes


def is_copy(source: str, target: str) -> bool:
    """Return whether two texts differ at most in case, white space and the language tag."""
    return one_line(split_tag(source)[1]).casefold() == one_line(target).casefold()


# Suspects


def _either(pattern: str) -> Callable[[Columns, Any], np.ndarray]:
    """Mark pairs with a side that matches a pattern of RE2."""
    def suspects(columns: Columns, _: Any) -> np.ndarray:
        return np.logical_or(*(pc.match_substring_regex(side, pattern).to_numpy(zero_copy_only=False) for side in columns))

    return suspects


def _equal(columns: Columns, _: Any) -> np.ndarray:
    return pc.equal(*columns).to_numpy(zero_copy_only=False)


def _symbolic(columns: Columns, least: float) -> np.ndarray:
    """Mark pairs with the characters other than letters that a judged text below this share of letters must have."""
    signs = math.ceil((1 - least) * JUDGED_CHARACTERS)
    return _either(rf"(?:[^\p{{L}}\p{{M}}\p{{N}}\s].*){{{signs}}}")(columns, least)


def _repetitive(columns: Columns, times: int) -> np.ndarray:
    return np.logical_or(*(_repeats_bytes(side, times) for side in columns))


def _repeats_bytes(texts: pa.Array, times: int) -> np.ndarray:
    """Mark texts in which up to LONGEST_PHRASE bytes come more than this many times in a row, and a few others.

    Such bytes equal the ones a period before them, all along the run.
    """
    _, offsets, content = texts.buffers()
    data, starts = np.frombuffer(content or b"", np.uint8), np.frombuffer(offsets, np.int32)[:len(texts)]
    marked = np.zeros(len(texts), bool)
    for period in range(1, LONGEST_PHRASE + 1):
        equal, length = data[period:] == data[:-period], 1
        needed = max(times, times * period - 3)  # the last phrase may lack its three bytes of punctuation
        while length < needed and equal.any():
            step = min(length, needed - length)
            equal, length = equal[:-step] & equal[step:], length + step
        marked[starts.searchsorted(np.flatnonzero(equal), side="right") - 1] = True
    return marked


# Rules


def _is_copied_sentence(sides: Sides, config: DataConfig) -> bool:
    """Return whether the target repeats a source of three words or more, half of them without a capital: names may be equal.

    The same in other case is no copy: restoring case is a task of its own.
    """
    if one_line(split_tag(sides.source)[1]) != one_line(sides.target):
        return False
    text = sides.source.lower() if sides.source.isupper() else sides.source
    words = WORD.findall(text)
    names = sum(word[0].isupper() for word in words)
    others = sum(len(word) // 2 if is_unspaced(word) else 1 for word in words) - names
    return names + others >= 3 and others >= max(2, names)


def _has_other_numbers(sides: Sides, config: DataConfig) -> bool:
    """Return whether numbers lack a counterpart: on both sides, or, under `strict`, on one. One reading that fits is enough."""
    both = config.match_numbers == "lenient"
    return all(_lack_counterparts(*(read(_ascii_digits(text)) for text in sides[:2]), both=both) for read in READINGS)


def _ascii_digits(text: str) -> str:
    return text if text.isascii() else "".join(
        str(unicodedata.decimal(character)) if character.isdecimal() else character for character in text)


# Numbers as digits only: with what groups them by thousands, without, and all digits of a text but zeros, for 1億2000万 and 12
# lakh, which are 120 million and 1.2 million.
READINGS: tuple[Callable[[str], set[str]], ...] = (
    lambda text: {re.sub(r"\D", "", number) for number in GROUPED.findall(text)},
    lambda text: set(re.findall(r"\d+", text)),
    lambda text: {re.sub(r"[\D0]", "", text)} - {""})


def _lack_counterparts(numbers: set[str], others: set[str], *, both: bool) -> bool:
    lacking = [any(not any(_counterparts(number, other) for other in theirs) for number in these)
               for these, theirs in ((numbers, others), (others, numbers))]
    return all(lacking) if both else any(lacking)


def _counterparts(number: str, other: str) -> bool:
    """Return whether numbers are equal, or look alike: 2 million and 2000000, 1990 and '90, 3 p.m. and 15, 19th and 1800s."""
    small, large = sorted((number.lstrip("0"), other.lstrip("0")), key=lambda digits: (len(digits), digits))
    if small.rstrip("0") == large.rstrip("0") or (len(small) > 1 and large.endswith(small)):
        return True
    if len(large) == 4 and large.endswith("00"):
        return int(small or 0) - int(large[:2]) == 1
    return small != "" and len(large) <= 2 and int(large) - int(small) == 12


def _has_other_addresses(sides: Sides, config: DataConfig) -> bool:
    return Counter(_addresses(sides.source)) != Counter(_addresses(sides.target))


def _addresses(text: str) -> list[str]:
    """Return e-mail addresses, and the longest part of each link's host, which links to other languages share."""
    found = [address.lower() for address in ADDRESS.findall(text)]
    return [address if "@" in address else max(re.split(r"[/?#:]", re.sub(r"^\w+://", "", address))[0].split("."), key=len)
            for address in found]


def _has_markup(sides: Sides, config: DataConfig) -> bool:
    """Return whether a side has tags or entities of HTML that the other lacks, or, under `strict`, any."""
    source, target = (_markup(text) for text in sides[:2])
    return source != target if config.match_markup == "lenient" else bool(source or target)


def _markup(text: str) -> Counter[str]:
    """Return tags by their name, and entities, without what only looks like an entity."""
    found = [re.split(r"[\s>]", markup.lower().replace("/>", ">"))[0] if markup[0] == "<" else markup
             for markup in MARKUP.findall(text)]
    return Counter(markup for markup in found if markup[0] == "<" or markup[1] == "#" or markup[1:] in html5)


def _repeats(sides: Sides, config: DataConfig) -> bool:
    """Return whether a letter, word or phrase repeats on one side only."""
    form = re.compile(rf"([^\W\d_].{{0,{LONGEST_PHRASE - 1}}}?)(?:\W{{0,3}}\1){{{config.max_repeats}}}")
    return (form.search(sides.source) is None) != (form.search(sides.target) is None)


def _lacks_letters(sides: Sides, config: DataConfig) -> bool:
    return min(map(_letters, sides[:2])) < config.min_letters


def _letters(text: str) -> float:
    """Return the share of letters, with their marks, in what is neither space nor digit; 1 for a short text."""
    categories = Counter(unicodedata.category(character)[0] for character in text)
    letters = categories["L"] + categories["M"]
    judged = len(text) - categories["Z"] - categories["N"]
    return letters / judged if judged >= JUDGED_CHARACTERS else 1.0


def _is_foreign(sides: Sides, config: DataConfig) -> bool:
    """Return whether a side is long enough to be identified, and in a language that it should not be in."""
    target = sides.tag.strip()[2:-2] or config.language
    sources = tuple(source for source, other in config.directions if other == target)
    odds = config.foreign_odds or math.inf
    return any(len(text) >= IDENTIFIED_CHARACTERS and foreign(text, expected, odds) != ""
               for text, expected in ((sides.source, sources), (sides.target, (target,))))


RULES = (
    Rule("target equals source", "drop_copies", _equal, _is_copied_sentence),
    Rule("numbers differ", "match_numbers", _either(r"\p{Nd}"), _has_other_numbers),
    Rule("addresses differ", "match_addresses", _either(r"(?i)@|https?://|www\."), _has_other_addresses),
    Rule("markup", "match_markup", _either("<.+>|&.+;"), _has_markup),
    Rule("repetition", "max_repeats", _repetitive, _repeats),
    Rule("few letters", "min_letters", _symbolic, _lacks_letters),
    Rule("wrong language", "foreign_odds", _either(rf"(?s).{{{IDENTIFIED_CHARACTERS}}}"), _is_foreign))


def without_rules_off(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of data except for rules that are off: what is cached by such a key stays valid when a rule is added."""
    off = {rule.option for rule in RULES if not options[rule.option]}
    return {name: value for name, value in options.items() if name not in off}
