"""A translation token by token, with its word alignment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from translator.config.options import SearchConfig
from translator.inference.alignment import align_words, word_numbers
from translator.search.hypothesis import Ids
from translator.search.scoring import Rating, coverage_penalty, length_penalty
from translator.text.tokenizer import Tokenizer


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
        links = align_words(rating.alignment[target_tags:, source_tags:], source_pieces, words)
        score = rating.log_probability / length_penalty(len(target), options.length_penalty_form, options.length_penalty)
        if options.coverage_penalty:
            coverage = rating.attention.sum(dim=0)[None, None]
            score += float(coverage_penalty(coverage, torch.tensor([source]), options.coverage_penalty))
        details = Details(
            details.pieces + tuple(target_pieces), details.log_probabilities + rating.log_probabilities, details.score + score,
            details.alignment + tuple((s + source_words, t + target_words) for s, t in links))
        source_words += len(set(word_numbers(source_pieces)))
        target_words += len(set(word_numbers(words)))
    return details

