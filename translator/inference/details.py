"""A translation token by token, with the words that render each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from translator.config.options import SearchConfig
from translator.inference.alignment import align_words, count_words
from translator.search.forced import Rating
from translator.search.hypothesis import Ids, coverage_penalty, length_penalty
from translator.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Details:
    """Of a translation; where a text was split, of its sentences one after the other."""

    pieces: tuple[str, ...] = ()  # EOS last, of each sentence
    log_probabilities: tuple[float, ...] = ()
    score: float = 0.0
    alignment: tuple[tuple[int, int], ...] = ()  # numbers of source and target words, from 0


def collect_details(
    rated: Iterable[tuple[tuple[Ids, Ids], Rating]], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer,
    options: SearchConfig,
) -> Details:
    """The details of a text. `rated`: of each sentence its ids and its translation's, both with EOS, and the models' rating."""
    told = Details()
    source_words = target_words = 0
    for (source, target), rating in rated:
        before, first = source_tokenizer.count_tags(source), target_tokenizer.count_tags(target)
        of_source, of_target = source_tokenizer.pieces(source[before:-1]), target_tokenizer.pieces(target)
        links = align_words(rating.attention[first:, before:], of_source, of_target[first:-1])
        score = rating.log_probability / length_penalty(len(target), options)
        if options.coverage_penalty:
            coverage = rating.attention.sum(dim=0)[None, None]
            score += float(coverage_penalty(coverage, torch.tensor([source]), options.coverage_penalty))
        told = Details(
            told.pieces + tuple(of_target), told.log_probabilities + rating.log_probabilities, told.score + score,
            told.alignment + tuple((s + source_words, t + target_words) for s, t in links))
        source_words += count_words(of_source)
        target_words += count_words(of_target[first:-1])
    return told
