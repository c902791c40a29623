"""Word alignment read off the cross-attention.

Garg et al. 2019, https://arxiv.org/abs/1909.02074, section 3: averaged over heads, attention aligns words well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from translator.text.tokenizer import WORD_START


def align_words(attention: Tensor, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of word numbers (source, target), from 0: for each target word the source word it attends to most.

    attention (T, S), from target pieces to source pieces; either side may have more rows (EOS) than there are pieces.
    Only pieces with letters or digits count where a word has any: attention that looks for nothing rests on punctuation.
    """
    source_words, target_words = _words(source), _words(target)
    if not source_words or not target_words:
        return []
    source_marks, target_marks = (~torch.tensor([any(map(str.isalnum, piece)) for piece in side]) for side in (source, target))
    counted = attention[: len(target), : len(source)].masked_fill(source_marks & ~target_marks[:, None], 0)
    lettered = {word for word, mark in zip(target_words, target_marks.tolist(), strict=True) if not mark}
    beside_letters = torch.tensor([word in lettered for word in target_words]) & target_marks
    by_piece = counted.masked_fill(beside_letters[:, None], 0)
    to_word = torch.zeros(len(target), source_words[-1] + 1).index_add(1, torch.tensor(source_words), by_piece)
    from_word = torch.zeros(target_words[-1] + 1, to_word.size(1)).index_add(0, torch.tensor(target_words), to_word)
    return [(best, word) for word, best in enumerate(from_word.argmax(dim=1).tolist())]


def _words(pieces: Sequence[str]) -> list[int]:
    """The number of each piece's word, words being what spaces part."""
    numbers, word = [], -1
    for piece in pieces:
        if word < 0 or piece.startswith(WORD_START):
            word += 1
        numbers.append(word)
    return numbers


def count_words(pieces: Sequence[str]) -> int:
    """How many words pieces make."""
    return max(_words(pieces), default=-1) + 1
