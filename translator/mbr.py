"""Minimum Bayes risk: the candidate that is most like all others (floor 2).

Kumar and Byrne 2004, https://aclanthology.org/N04-1022; Eikema and Aziz 2020, https://arxiv.org/abs/2005.10283.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from translator.metrics import SentenceMetric, sentence_scores


def by_expected_score(candidates: Sequence[str], metric: SentenceMetric) -> list[str]:
    """The different candidates by their mean score against all of them as references, best first.

    Every candidate is held to be as likely as any other, so one that was drawn twice counts twice.
    """
    counts = Counter(candidates)
    expected = dict.fromkeys(counts, 0.0)
    for reference, times in counts.items():
        for candidate, score in zip(counts, sentence_scores(metric, list(counts), reference), strict=True):
            expected[candidate] += times * score
    return sorted(counts, key=lambda candidate: -expected[candidate])
