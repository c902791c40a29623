"""Scores of every sentence against every other, n-grams counted once a sentence and matched by products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_all_word_ngrams
from torch import Tensor

from translator.metrics.scores import SENTENCE_METRICS, SentenceMetric

NGrams = Counter[Hashable]


def pairwise_scores(metric: SentenceMetric, texts: Sequence[str]) -> Tensor:
    """What `sentence_scores` gives each of N sentences against each as its reference: (sentence, reference), float64."""
    scorer = SENTENCE_METRICS[metric]()
    statistics = STATISTICS[metric](scorer, texts)
    scores = [scorer._compute_score_from_stats(of_pair).score for of_pair in statistics.flatten(1).T.tolist()]
    return torch.tensor(scores, dtype=torch.float64).view(len(texts), len(texts))


def _of_chrf(chrf: Any, texts: Sequence[str]) -> Tensor:
    """sacreBLEU's statistics for chrF: of each order the n-grams of the sentence, of the reference and in both (18, N, N)."""
    statistics = []
    for ngrams in zip(*(extract_all_char_ngrams(text, chrf.char_order) for text in texts), strict=True):
        count, shared = _counts(ngrams)
        in_reference = count.expand_as(shared)
        in_sentence = in_reference.T * (in_reference > 0)  # no order counts for which the reference is too short
        statistics += [in_sentence, in_reference, shared]
    return torch.stack(statistics)


def _of_bleu(bleu: Any, texts: Sequence[str]) -> Tensor:
    """sacreBLEU's statistics for BLEU: both lengths, of each order the n-grams in both, then of the sentence (10, N, N)."""
    everything = [extract_all_word_ngrams(bleu.tokenizer(text.rstrip()), 1, bleu.max_ngram_order) for text in texts]
    length = torch.tensor([length for _, length in everything]).expand(len(texts), -1)
    correct, total = [], []
    for order in range(1, bleu.max_ngram_order + 1):
        count, shared = _counts([
            Counter({ngram: times for ngram, times in ngrams.items() if len(ngram) == order}) for ngrams, _ in everything])
        correct.append(shared)
        total.append(count.expand_as(shared).T)
    return torch.stack([length.T, length, *correct, *total])


STATISTICS: dict[SentenceMetric, Callable[[Any, Sequence[str]], Tensor]] = {"chrf": _of_chrf, "bleu": _of_bleu}


def _counts(ngrams: Sequence[NGrams]) -> tuple[Tensor, Tensor]:
    """How many n-grams each of N sentences has (N), and every two have in common (N, N)."""
    # An n-gram's second occurrence is one of its own: two sentences share as many as the lesser count.
    occurrences = [[(ngram, nth) for ngram, times in of_one.items() for nth in range(times)] for of_one in ngrams]
    column = {occurrence: i for i, occurrence in enumerate({one for of_one in occurrences for one in of_one})}
    has = torch.zeros(len(ngrams), len(column))
    for row, of_one in zip(has, occurrences, strict=True):
        row[[column[occurrence] for occurrence in of_one]] = 1
    return torch.tensor([len(of_one) for of_one in occurrences]), (has @ has.T).long()
