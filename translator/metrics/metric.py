"""The interface of a metric. Each name of `config.options.MetricName` is a module of this package, with its class as METRIC."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Statistics = NDArray[np.float64]


class Metric(ABC):
    """Score a corpus by the sum of its sentences' statistics, so that a bootstrap can resample sentences."""

    name: ClassVar[str]  # in tables
    label: ClassVar[str] = ""  # on the console, if different
    lower_is_better: ClassVar[bool] = False
    # Unless train.metric names it: whether validations compute it, and up to how many words a reference on average.
    in_validations: ClassVar[bool] = True
    longest: ClassVar[float] = math.inf

    @abstractmethod
    def __init__(self, language: str) -> None:
        """language: of hypotheses and references, as data.target names it."""

    @abstractmethod
    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Statistics:
        """Return K numbers for each of N sentences: (N, K)."""

    @abstractmethod
    def value(self, total: Sequence[float] | Statistics) -> float:
        """Return the score for the sum of statistics: (K,)."""

    @abstractmethod
    def signature(self) -> str:
        """Say how a score was computed, for others to repeat it; called after `statistics`."""


class SacreBleuMetric(Metric):
    """A metric of sacreBLEU's, with one reference a sentence."""

    scorer: Any

    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Statistics:
        return np.array(self.scorer._extract_corpus_statistics(list(hypotheses), [list(references)]), dtype=np.float64)

    def value(self, total: Sequence[float] | Statistics) -> float:
        return self.scorer._compute_score_from_stats(total).score

    def signature(self) -> str:
        return str(self.scorer.get_signature())
