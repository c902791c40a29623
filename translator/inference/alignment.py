"""Word alignment: from evidence for links between pieces to links between words or pieces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from translator.text.tokenizer import WORD_START


def align_words(alignment: Tensor, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of word numbers (source, target), from 0: for each target word the source word with most evidence.

    alignment (T, S): a `Rating`'s, from target to source pieces; either side may have more rows (EOS) than there are pieces.
    A word without any evidence has no pair. Where a word has letters or digits, only pieces with them count.
    """
    source_words, target_words = word_numbers(source), word_numbers(target)
    if not source_words or not target_words:
        return []
    by_piece = _without_marks(alignment, source, target)
    target_marks = _marks(target)
    lettered = {word for word, mark in zip(target_words, target_marks.tolist(), strict=True) if not mark}
    beside_letters = torch.tensor([word in lettered for word in target_words]) & target_marks
    by_piece = by_piece.masked_fill(beside_letters[:, None], 0)
    to_word = torch.zeros(len(target), source_words[-1] + 1).index_add(1, torch.tensor(source_words), by_piece)
    from_word = torch.zeros(target_words[-1] + 1, to_word.size(1)).index_add(0, torch.tensor(target_words), to_word)
    return [(best, word) for word, best in enumerate(_best(from_word)) if best is not None]


def align_pieces(alignment: Tensor, source: Sequence[str], target: Sequence[str]) -> list[int | None]:
    """Return for each target piece the number of the source piece with most evidence; None without evidence.

    Arguments as of `align_words`.
    """
    return _best(_without_marks(alignment, source, target)) if source else [None] * len(target)


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """Return the number of each piece's word; words are separated by spaces."""
    starts = (number == 0 or piece.startswith(WORD_START) for number, piece in enumerate(pieces))
    return [count - 1 for count in itertools.accumulate(starts)]


def _without_marks(alignment: Tensor, source: Sequence[str], target: Sequence[str]) -> Tensor:
    """Return the evidence without links from letters or digits to punctuation: attention without an aim rests there."""
    return alignment[: len(target), : len(source)].masked_fill(_marks(source) & ~_marks(target)[:, None], 0)


def _marks(pieces: Sequence[str]) -> Tensor:
    """Return which pieces have neither letters nor digits."""
    return torch.tensor([not any(map(str.isalnum, piece)) for piece in pieces], dtype=torch.bool)


def _best(rows: Tensor) -> list[int | None]:
    """Return the place of each row's largest value; None for a row of zeros."""
    best = rows.max(dim=1)
    return [place if value > 0 else None for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
