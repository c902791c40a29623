"""A translation token by token, with its word alignment."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translator.config.options import SearchConfig
from translator.search.hypothesis import Ids
from translator.search.scoring import Rating, coverage_penalty, length_penalty
from translator.text.tokenizer import WORD_START, Tokenizer


@dataclass(frozen=True)
class Details:
    """The tokens of a translation; where a text was split, of its sentences one after the other."""

    pieces: tuple[str, ...] = ()  # EOS last, of each sentence
    log_probabilities: tuple[float, ...] = ()
    score: float = 0.0
    alignment: tuple[tuple[int, int], ...] = ()  # numbers of source and target words, from 0


def collect_details(
    rated: Iterable[tuple[tuple[Ids, Ids], Rating]], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer,
    options: SearchConfig,
) -> Details:
    """Collect the details of a text from each sentence's ids, its translation's, both with EOS, and their rating."""
    details = Details()
    source_words = target_words = 0
    for (source, target), rating in rated:
        source_tags, target_tags = source_tokenizer.count_tags(source), target_tokenizer.count_tags(target)
        source_pieces, target_pieces = source_tokenizer.pieces(source[source_tags:-1]), target_tokenizer.pieces(target)
        words = target_pieces[target_tags:-1]
        links = align_words(rating.attention[target_tags:, source_tags:], source_pieces, words)
        score = rating.log_probability / length_penalty(len(target), options.length_penalty_form, options.length_penalty)
        if options.coverage_penalty:
            coverage = rating.attention.sum(dim=0)[None, None]
            score += float(coverage_penalty(coverage, torch.tensor([source]), options.coverage_penalty))
        details = Details(
            details.pieces + tuple(target_pieces), details.log_probabilities + rating.log_probabilities, details.score + score,
            details.alignment + tuple((s + source_words, t + target_words) for s, t in links))
        source_words += len(set(_word_numbers(source_pieces)))
        target_words += len(set(_word_numbers(words)))
    return details


def align_words(attention: Tensor, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of word numbers (source, target), from 0: for each target word the source word it attends to most.

    Averaged over heads, attention aligns words well (Garg et al. 2019, https://arxiv.org/abs/1909.02074, section 3).
    attention (T, S), from target pieces to source pieces; either side may have more rows (EOS) than there are pieces.
    Where a word has letters or digits, only pieces with them count: attention without an aim rests on punctuation.
    """
    source_words, target_words = _word_numbers(source), _word_numbers(target)
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


def _word_numbers(pieces: Sequence[str]) -> list[int]:
    """Return the number of each piece's word; words are separated by spaces."""
    starts = (number == 0 or piece.startswith(WORD_START) for number, piece in enumerate(pieces))
    return [count - 1 for count in itertools.accumulate(starts)]
