"""Scores of a corpus with signatures (Post 2018, https://arxiv.org/abs/1804.08771), by source length, and significance."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.significance import estimate_ci

from translator.metrics.metric import METRICS, Metric
from translator.text.writing_systems import UNSPACED

# A word, or a letter of a script without spaces between words.
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
# Upper bounds, in source words, of the groups of `scores_by_length`; the last group has none.
LENGTH_BOUNDS = (5, 10, 15, 20, 30, 50)
# Of a bootstrap, as `sacrebleu --paired-bs` has them.
BOOTSTRAP_SAMPLES, SEED = 1000, 12345


@dataclass(frozen=True)
class Score:
    """A corpus score with what it takes to reproduce it."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class LengthScore:
    """The score of the sentences of `lengths` source words."""

    lengths: str
    count: int
    value: float


@dataclass(frozen=True)
class Comparison:
    """One system's score with its 95 % interval; `p_value` of its difference from the baseline, which has none itself."""

    system: str
    metric: str
    value: float
    mean: float
    interval: float
    p_value: float | None


def better(metric: str, a: float, b: float) -> bool:
    """Return whether `a` is a better value of a metric, also of one corpus (bleu.captions), of loss or perplexity than `b`."""
    metric = metric.partition(".")[0]
    return a < b if metric not in METRICS or METRICS[metric].lower_is_better else a > b


def metrics_for(references: Sequence[str], language: str, names: Collection[str] | None = None) -> dict[str, Metric]:
    """Build the metrics to evaluate with, by name: those named, or the usual ones for references of this length."""
    chosen = _usual("evaluation", references) if names is None else names
    return {name: metric(language) for name, metric in METRICS.items() if name in chosen}


def validation_metrics(references: Sequence[str], language: str, names: Collection[str]) -> dict[str, Metric]:
    """Build the metrics of a validation, by name: those named, and the usual quick ones."""
    chosen = {*(name.partition(".")[0] for name in names), *_usual("validation", references)}
    return {name: metric(language) for name, metric in METRICS.items() if name in chosen}


def usual_metric(references: Sequence[str]) -> str:
    """Return the name of the metric to choose a model by: bleu, or exact for references of one or two words."""
    return _usual("validation", references)[0]


def _usual(place: str, references: Sequence[str]) -> list[str]:
    mean = sum(len(WORD.findall(text)) for text in references) / max(1, len(references))
    return [name for name, cls in METRICS.items() if place in cls.usual and cls.words[0] <= mean <= cls.words[1]]


def score(metrics: dict[str, Metric], sources: Sequence[str], hypotheses: Sequence[str],
          *references: Sequence[str]) -> dict[str, Score]:
    """Score a test set by each metric. references: one list or more, of one for each sentence."""
    return score_parts(metrics, {"": range(len(hypotheses))}, sources, hypotheses, *references)[""]


def score_parts(metrics: dict[str, Metric], parts: Mapping[str, range], sources: Sequence[str], hypotheses: Sequence[str],
                *references: Sequence[str]) -> dict[str, dict[str, Score]]:
    """Score parts of a test set, as `score` does. parts: the numbers of the sentences of each, by name."""
    if not all(parts.values()):
        raise ValueError("no sentences to score")
    statistics = {name: metric.statistics(sources, hypotheses, *references) for name, metric in metrics.items()}
    return {part: {
        name: Score(metric.name, metric.value(statistics[name][sentences.start : sentences.stop].sum(0).tolist()),
                    metric.signature())
        for name, metric in metrics.items()} for part, sentences in parts.items()}


def scores_by_length(metric: Metric, sources: Sequence[str], hypotheses: Sequence[str],
                     *references: Sequence[str]) -> list[LengthScore]:
    """Return the score of the sentences in each group of source lengths (words); groups without sentences are left out."""
    lengths = [max(1, len(WORD.findall(source))) for source in sources]
    statistics, scores = metric.statistics(sources, hypotheses, *references), []
    for low, high in zip((0, *LENGTH_BOUNDS), (*LENGTH_BOUNDS, None), strict=True):
        rows = [i for i, n in enumerate(lengths) if n > low and (high is None or n <= high)]
        if rows:
            name = f"over {low}" if high is None else f"{low + 1} to {high}"
            scores.append(LengthScore(name, len(rows), metric.value(statistics[rows].sum(0).tolist())))
    return scores


def paired_bootstrap(metrics: Iterable[Metric], systems: Sequence[tuple[str, Sequence[str]]], sources: Sequence[str],
                     *references: Sequence[str]) -> list[Comparison]:
    """Compare (name, hypotheses) of systems with the first by paired bootstrap (Koehn 2004, https://aclanthology.org/W04-3250)."""
    chosen = np.random.default_rng(SEED).choice(len(sources), (BOOTSTRAP_SAMPLES, len(sources)))
    comparisons = []
    for metric in metrics:
        baseline: tuple[float, np.ndarray] | None = None
        for system, hypotheses in systems:
            statistics = metric.statistics(sources, hypotheses, *references)
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
            mean, interval = map(float, estimate_ci(samples))
            comparisons.append(Comparison(system, metric.name, value, mean, interval, p_value))
    return comparisons
