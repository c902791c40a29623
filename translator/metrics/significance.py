"""Significance of differences between systems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translator.metrics.metric import Metric

BOOTSTRAP_SAMPLES = 1000
SEED = 12345


@dataclass(frozen=True)
class Comparison:
    """One system's score with its 95 % interval; `p_value` of its difference from the baseline, which has none itself."""

    system: str
    metric: str
    value: float
    mean: float
    interval: float
    p_value: float | None


def paired_bootstrap(
    metrics: Iterable[Metric], systems: Sequence[tuple[str, Sequence[str]]], sources: Sequence[str], references: Sequence[str]
) -> list[Comparison]:
    """Compare (name, hypotheses) of several systems with the first of them by paired bootstrap resampling.

    Koehn 2004, https://aclanthology.org/W04-3250; the samples and figures are those of `sacrebleu --paired-bs`.
    """
    chosen = np.random.default_rng(SEED).choice(len(references), (BOOTSTRAP_SAMPLES, len(references)))
    comparisons = []
    for metric in metrics:
        baseline: tuple[float, NDArray[np.float64]] | None = None
        for system, hypotheses in systems:
            statistics = metric.statistics(sources, hypotheses, references)
            value = metric.value(statistics.sum(0).tolist())
            # In float32, as sacreBLEU computes them.
            samples = np.array([metric.value(sample.sum(0)) for sample in statistics.astype(np.float32)[chosen]])
            p_value = None
            if baseline is None:
                baseline = value, samples
            elif list(hypotheses) == list(systems[0][1]):
                p_value = 1.0
            else:
                differences = np.abs(samples - baseline[1])
                larger = np.sum(differences - differences.mean() > abs(value - baseline[0]))
                p_value = (int(larger) + 1) / (BOOTSTRAP_SAMPLES + 1)
            ordered = np.sort(samples)
            interval = (ordered[-1 - BOOTSTRAP_SAMPLES // 40] - ordered[BOOTSTRAP_SAMPLES // 40]) / 2
            comparisons.append(Comparison(system, metric.name, value, float(ordered.mean()), float(interval), p_value))
    return comparisons
