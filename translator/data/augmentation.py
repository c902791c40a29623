"""Noise in training: text as people type it, redrawn for each pair in each epoch (options `data.augment`).

Only (seed, epoch, row) decides how a pair is changed. So it does not depend on batches, processes and interruptions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from random import Random

import numpy as np

from translator.config.augmentation import AugmentConfig
from translator.config.languages import split_tag
from translator.text.placeholders import MOST_PLACEHOLDERS, Span, find_spans, joined, placeholder
from translator.text.tokenizer import Tokenizers
from translator.text.writing_systems import is_unspaced

AUGMENTATION = 3  # purpose of derived seeds
CASES = ("upper", "title", "lower")  # a pair gets at most one
DIGITS_SHARE = 0.5  # of the pairs with digits
FINAL_MARKS = ".!?…。！？．।؟۔"
NUMBER = re.compile(r"(?<![\w.,:])\d+(?:[.,:]\d+)*(?!\w)")
SEPARATOR = re.compile(r"(?<=\d)[.,:](?=\d)")
NAME = re.compile(r"[^\W\d_]\w+")  # a name, if both sides have it, and not in lower case
# Words of four letters or more, but not parts of addresses and numbers. Typing errors go into these.
WORD = re.compile(r"""(?<![^\s"'(„“«¿¡])[^\W\d_]{4,}(?=[^\w\s]*(?!\S))""")
WORD_TYPOS = 0.1  # share of them in a changed text, which has at least one
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
NEIGHBOURS = {key: row[max(0, place - 1) : place] + row[place + 1 : place + 2]
              for row in KEYBOARD for place, key in enumerate(row)}

Pair = tuple[str, str]  # a source, without its language tag, and its target
Slot = tuple[Span, Span]  # places of both sides that mean the same


class Augmenter:
    """Draw what happens to the pairs of an epoch, and change their texts."""

    def __init__(self, config: AugmentConfig, seed: int, tokenizers: Tokenizers) -> None:
        """Turn off the kind placeholders where a vocabulary has none."""
        most = min(len(tokenizer.placeholders) for tokenizer in tokenizers)
        self._shares = {
            kind: share for kind in KINDS if (share := getattr(config, kind)) and (most or kind != "placeholders")}
        self._seed, self.kinds = seed, tuple(self._shares)  # the kinds that are on, in the order in which they change a pair
        self._changes = KINDS | {"placeholders": partial(_placeholders, most=most)}

    def draw(self, epoch: int, digits: np.ndarray) -> np.ndarray:
        """Return whether each pair gets each of `kinds` in an epoch: (kinds, rows) bool. digits: whether its source has some.

        Pairs with digits are rare, and only they show where numbers stand: numbers and placeholders get half of them at least.
        """
        rows, taken = len(digits), 0.0
        drawn = np.zeros((len(self.kinds), rows), bool)
        for number, (kind, share) in enumerate(self._shares.items()):
            purpose = 0 if kind in CASES else 1 + list(KINDS).index(kind)
            fractions = np.random.default_rng((self._seed, AUGMENTATION, epoch, purpose)).random(rows, np.float32)
            if kind in CASES:  # one number decides among them
                fractions -= taken
                taken += share
            least = DIGITS_SHARE if kind in ("numbers", "placeholders") else 0.0
            drawn[number] = (fractions >= 0) & (fractions < np.where(digits, max(share, least), share))
        return drawn

    def change(self, source: str, target: str, drawn: np.ndarray, epoch: int, row: int) -> Pair:
        """Return a pair changed by each of `kinds` for which `drawn` (kinds,) is true."""
        rng = Random(self._seed << 96 | epoch << 64 | row)
        tag, text = split_tag(source)
        pair = text, target
        for kind in compress(self.kinds, drawn.tolist()):
            pair = self._changes[kind](pair, rng)
        return tag + pair[0], pair[1]


def _numbers(pair: Pair, rng: Random) -> Pair:
    """Replace numbers that both sides have by random ones; without any, put one in where a placeholder could stand."""
    slots = [slot for _, slot in _shared(pair, _numbers_in)]
    if not slots:
        slot, number = rng.choice(_places(pair)), _random_number(rng.randint(1, 5), rng)
        return _edited(pair, [(slot, [_spaced(side, span, number) for side, span in zip(pair, slot, strict=True)])])
    edits = []
    for slot in slots:
        old = [side[start:end] for side, (start, end) in zip(pair, slot, strict=True)]
        plain = all(map(str.isdigit, old))
        new = _random_number(rng.randint(1, 5) if plain and rng.random() < 0.5 else sum(map(str.isdigit, old[0])), rng)
        edits.append((slot, [_with_digits(number, new) for number in old]))
    return _edited(pair, edits)


def _random_number(digits: int, rng: Random) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _numbers_in(text: str) -> list[Span]:
    return [match.span() for match in NUMBER.finditer(text)]


def _with_digits(number: str, digits: str) -> str:
    """Return a number with other digits between its separators."""
    left = iter(digits)
    return digits if number.isdigit() else re.sub(r"\d", lambda _: next(left), number)


def _placeholders(pair: Pair, rng: Random, most: int = MOST_PLACEHOLDERS) -> Pair:
    """Mask what both sides keep; without any, put one to three placeholders at places that both sides have.

    Their numbers are drawn from 1 to `most`, so that each is learned, and ascend in the source as in decoding.
    """
    slots = [slot for _, slot in _shared(pair, lambda text: joined([*find_spans(text), *_numbers_in(text)]))]
    if not slots:
        places = _places(pair)
        slots = rng.sample(places, min(len(places), rng.randint(1, 3)))
    slots = sorted(slots[:most])
    numbers = sorted(rng.sample(range(1, most + 1), len(slots)))
    return _edited(pair, [
        (slot, [_spaced(side, span, placeholder(number)) for side, span in zip(pair, slot, strict=True)])
        for slot, number in zip(slots, numbers, strict=True)])


def _places(pair: Pair) -> list[Slot]:
    """Return where placeholders can stand: at the start, at the end, before the final marks, and in place of names."""
    texts = [side.rstrip() for side in pair]
    starts, ends, marks = (0, 0), list(map(len, texts)), [len(text.rstrip(FINAL_MARKS)) for text in texts]
    positions = [starts, ends, *([marks] if all(map(int.__lt__, marks, ends)) else [])]
    names = [slot for name, slot in _shared(pair, _names_in) if not name.islower()]
    return [((source, source), (target, target)) for source, target in positions] + names


def _names_in(text: str) -> list[Span]:
    return [match.span() for match in NAME.finditer(text)]


def _spaced(text: str, span: Span, piece: str) -> str:
    """Return a piece for a span of a text. At an empty span it gets a space towards the words, if their script has spaces."""
    start, end = span
    if start < end or is_unspaced(text[max(start - 1, 0) :][:1]):
        return piece
    return f" {piece}" if start else f"{piece} "


def _shared(pair: Pair, find: Callable[[str], list[Span]]) -> list[tuple[str, Slot]]:
    """Return what `find` finds once on each side, the same except for separators in numbers, and where."""
    found = [[(SEPARATOR.sub("", side[start:end]), (start, end)) for start, end in find(side)] for side in pair]
    if not all(found):
        return []
    counts = [Counter(name for name, _ in side) for side in found]
    targets = dict(found[1])
    return [(name, (span, targets[name])) for name, span in found[0] if counts[0][name] == counts[1][name] == 1]


def _edited(pair: Pair, edits: Sequence[tuple[Slot, Sequence[str]]]) -> Pair:
    """Return a pair with each slot's spans replaced by a text of each side."""
    sides = []
    for side, text in enumerate(pair):
        for (start, end), new in sorted(((slot[side], new[side]) for slot, new in edits), reverse=True):
            text = text[:start] + new + text[end:]
        sides.append(text)
    return sides[0], sides[1]


def _no_stop(pair: Pair, rng: Random) -> Pair:
    """Remove the final marks of both sides, if both have some and words remain."""
    short = [side.rstrip().rstrip(FINAL_MARKS) for side in pair]
    changed = all(0 < len(new) < len(side.rstrip()) for new, side in zip(short, pair, strict=True))
    return (short[0], short[1]) if changed else pair


def _upper(pair: Pair, rng: Random) -> Pair:
    return pair[0].upper(), pair[1].upper()


def _title(pair: Pair, rng: Random) -> Pair:
    """Capitalise each word of the source. The target stays, so that a title is translated into ordinary case."""
    return " ".join(word[:1].upper() + word[1:] for word in pair[0].split(" ")), pair[1]


def _lower(pair: Pair, rng: Random) -> Pair:
    return pair[0].lower(), pair[1]


def _typos(pair: Pair, rng: Random) -> Pair:
    """Mistype one word of the source, and some of the others."""
    text = pair[0]
    words = [match.span() for match in WORD.finditer(text)]
    chosen = {place for place in range(len(words)) if rng.random() < WORD_TYPOS} | (
        {rng.randrange(len(words))} if words else set())
    for start, end in (words[place] for place in sorted(chosen, reverse=True)):
        text = text[:start] + _mistyped(text[start:end], rng) + text[end:]
    return text, pair[1]


def _mistyped(word: str, rng: Random) -> str:
    """Return a word with two letters swapped, or one letter dropped, doubled, or replaced by a neighbour on the keyboard."""
    place = rng.randrange(1, len(word) - 1)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    neighbour = rng.choice(NEIGHBOURS.get(letter, letter))
    return before + rng.choice([after[0] + letter + after[1:], after, letter + letter + after, neighbour + after])


# In the order in which they change a pair.
KINDS: dict[str, Callable[[Pair, Random], Pair]] = {
    "numbers": _numbers, "placeholders": _placeholders, "no_stop": _no_stop, "upper": _upper, "title": _title,
    "lower": _lower, "typos": _typos}
