"""Scores of single sentences, and of every sentence of a list against every other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_all_word_ngrams
from torch import Tensor

SentenceMetric = Literal["chrf", "bleu"]
# BLEU of a sentence counts only the orders of n-grams that fit into it.
SENTENCE_METRICS: dict[SentenceMetric, Callable[..., Any]] = {"chrf": CHRF, "bleu": partial(BLEU, effective_order=True)}


def sentence_scores(metric: SentenceMetric, hypotheses: Iterable[str], reference: str) -> list[float]:
    """Score each sentence against one reference. chrF, unlike BLEU, ranks bad sentences where no word sequence matches."""
    against = SENTENCE_METRICS[metric](references=[[reference]])
    return [against.corpus_score([hypothesis], None).score for hypothesis in hypotheses]


def pairwise_scores(metric: SentenceMetric, texts: Sequence[str]) -> Tensor:
    """Score each of N sentences against each as its reference, as `sentence_scores` does: (sentence, reference), float64."""
    scorer = SENTENCE_METRICS[metric]()
    statistics = (_chrf_statistics if metric == "chrf" else _bleu_statistics)(scorer, texts)
    scores = [scorer._compute_score_from_stats(of_pair).score for of_pair in statistics.flatten(1).T.tolist()]
    return torch.tensor(scores, dtype=torch.float64).view(len(texts), len(texts))


def _chrf_statistics(chrf: Any, texts: Sequence[str]) -> Tensor:
    """Return sacreBLEU's statistics, by order the n-grams of the sentence, of the reference and in common: (18, N, N)."""
    statistics = []
    for ngrams in zip(*(extract_all_char_ngrams(text, chrf.char_order) for text in texts), strict=True):
        count, common = _count(ngrams)
        in_reference = count.expand_as(common)
        in_sentence = in_reference.T * (in_reference > 0)  # an order that is too long for the reference does not count
        statistics += [in_sentence, in_reference, common]
    return torch.stack(statistics)


def _bleu_statistics(bleu: Any, texts: Sequence[str]) -> Tensor:
    """Return sacreBLEU's statistics: both lengths, by order the n-grams in common, then the sentence's own: (10, N, N)."""
    everything = [extract_all_word_ngrams(bleu.tokenizer(text.rstrip()), 1, bleu.max_ngram_order) for text in texts]
    length = torch.tensor([length for _, length in everything]).expand(len(texts), -1)
    counts = [
        _count([Counter({ngram: times for ngram, times in ngrams.items() if len(ngram) == order}) for ngrams, _ in everything])
        for order in range(1, bleu.max_ngram_order + 1)]
    totals = (count.expand_as(common).T for count, common in counts)
    return torch.stack([length.T, length, *(common for _, common in counts), *totals])


def _count(ngrams: Sequence[Counter[Hashable]]) -> tuple[Tensor, Tensor]:
    """Count the n-grams of each of N sentences (N), and the n-grams that every two share (N, N)."""
    # A repeated n-gram gets a column for each occurrence, so two sentences share the smaller number of them.
    occurrences = [[(ngram, nth) for ngram, times in counter.items() for nth in range(times)] for counter in ngrams]
    column = {occurrence: i for i, occurrence in enumerate({one for sentence in occurrences for one in sentence})}
    has = torch.zeros(len(ngrams), len(column))
    for row, sentence in zip(has, occurrences, strict=True):
        row[[column[occurrence] for occurrence in sentence]] = 1
    return torch.tensor([len(sentence) for sentence in occurrences]), (has @ has.T).long()
