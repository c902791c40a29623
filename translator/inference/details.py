"""A translation token by token, with its word alignment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from translator.config.options import SearchConfig
from translator.inference.alignment import align_words, word_numbers
from translator.search.hypothesis import Ids
from translator.search.scoring import Rating, coverage_penalty, length_penalty
from translator.text.surface_form import SurfaceForm
from translator.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Details:
    """The tokens of a translation; where a text was split, of its sentences one after the other."""

    pieces: tuple[str, ...] = ()  # EOS last, of each sentence
    log_probabilities: tuple[float, ...] = ()
    score: float = 0.0
    alignment: tuple[tuple[int, int], ...] = ()  # numbers of source and target words, from 0


def collect_details(
    rated: Iterable[tuple[tuple[Ids, Ids], Rating]], forms: Sequence[SurfaceForm], source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer, options: SearchConfig,
) -> Details:
    """Collect the details of a text from each sentence's ids, its translation's, both with EOS, and their rating.

    forms: of all sentences; one without text has no pair of ids, but words.
    """
    details, with_text = Details(), iter(rated)
    source_words = target_words = 0
    for form in forms:
        if not form.text:
            links, words_of_source, words_of_target = form.renumbered([], "")
            details = dataclasses.replace(details, alignment=(
                *details.alignment, *((s + source_words, t + target_words) for s, t in links)))
            source_words, target_words = source_words + words_of_source, target_words + words_of_target
            continue
        (source, target), rating = next(with_text)
        source_tags, target_tags = source_tokenizer.count_tags(source), target_tokenizer.count_tags(target)
        source_pieces, target_pieces = source_tokenizer.pieces(source[source_tags:-1]), target_tokenizer.pieces(target)
        words = target_pieces[target_tags:-1]
        links = align_words(rating.alignment[target_tags:, source_tags:], source_pieces, words)
        words_of_source, words_of_target = len(set(word_numbers(source_pieces))), len(set(word_numbers(words)))
        if not form.is_plain:
            [output] = target_tokenizer.decode([target])
            links, words_of_source, words_of_target = form.renumbered(links, output)
        score = rating.log_probability / length_penalty(len(target), options.length_penalty_form, options.length_penalty)
        if options.coverage_penalty:
            coverage = rating.attention.sum(dim=0)[None, None]
            score += float(coverage_penalty(coverage, torch.tensor([source]), options.coverage_penalty))
        details = Details(
            details.pieces + tuple(target_pieces), details.log_probabilities + rating.log_probabilities, details.score + score,
            details.alignment + tuple((s + source_words, t + target_words) for s, t in links))
        source_words += words_of_source
        target_words += words_of_target
    return details

