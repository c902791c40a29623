"""Minimum Bayes risk: the candidate that is most like all others.

Kumar and Byrne 2004, https://aclanthology.org/N04-1022; Eikema and Aziz 2020, https://arxiv.org/abs/2005.10283.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from translator.metrics.pairwise import pairwise_scores
from translator.metrics.scores import SentenceMetric


def by_expected_score(candidates: Sequence[str], metric: SentenceMetric) -> list[str]:
    """The different candidates by their mean score against all of them as references, best first.

    Every candidate is held to be as likely as any other, so one that was drawn twice counts twice.
    """
    counts = Counter(candidates)
    times = torch.tensor(list(counts.values()), dtype=torch.float64)
    expected = dict(zip(counts, (pairwise_scores(metric, list(counts)) @ times).tolist(), strict=True))
    return sorted(counts, key=lambda candidate: -expected[candidate])
