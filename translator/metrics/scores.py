"""Translation scores with signatures, of a corpus, by source length and of single sentences.

Post 2018, "A Call for Clarity in Reporting BLEU Scores", https://arxiv.org/abs/1804.08771. Always on detokenised text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sacrebleu.metrics import BLEU, CHRF

from translator.metrics.metric import METRICS, Metric
from translator.text.writing_systems import UNSPACED

# A word, or a letter of a script without spaces between words.
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
# Upper bounds, in source words, of the groups of `scores_by_length`; the last group has none.
LENGTH_BOUNDS = (5, 10, 15, 20, 30, 50)

SentenceMetric = Literal["chrf", "bleu"]
# BLEU of a sentence counts only the orders of n-grams that fit into it.
SENTENCE_METRICS: dict[SentenceMetric, Callable[..., Any]] = {"chrf": CHRF, "bleu": partial(BLEU, effective_order=True)}


@dataclass(frozen=True)
class Score:
    """A corpus score with what it takes to reproduce it."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the sentences of `lengths` source words."""

    lengths: str
    count: int
    bleu: float


def better(metric: str, a: float, b: float) -> bool:
    """Return whether `a` is a better value of a metric, of loss or of perplexity than `b`."""
    return a < b if metric not in METRICS or METRICS[metric].lower_is_better else a > b


def metrics_for(references: Sequence[str], language: str) -> dict[str, Metric]:
    """Build the metrics to evaluate with, by name: all except those that take too long on references of this length."""
    words = sum(len(WORD.findall(text)) for text in references)
    return {name: metric(language) for name, metric in METRICS.items() if words <= metric.longest * len(references)}


def validation_metrics(language: str, metric: str) -> dict[str, Metric]:
    """Build the metrics of a validation, by name: the quick ones, and `train.metric`."""
    return {name: cls(language) for name, cls in METRICS.items() if cls.in_validations or name == metric}


def score(
    metrics: dict[str, Metric], sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Score]:
    """Score a corpus with one reference a sentence by each metric."""
    if not hypotheses:
        raise ValueError("no sentences to score")
    totals = {name: metric.statistics(sources, hypotheses, references).sum(0) for name, metric in metrics.items()}
    return {
        name: Score(metric.name, metric.value(totals[name].tolist()), metric.signature()) for name, metric in metrics.items()}


def scores_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], language: str
) -> list[LengthScore]:
    """Return the BLEU of the sentences in each group of source lengths, in words; groups without sentences are left out."""
    lengths = [max(1, len(WORD.findall(source))) for source in sources]
    scores, bleu = [], {"bleu": METRICS["bleu"](language)}
    for low, high in zip((0, *LENGTH_BOUNDS), (*LENGTH_BOUNDS, None), strict=True):
        rows = [i for i, n in enumerate(lengths) if n > low and (high is None or n <= high)]
        if rows:
            group = score(bleu, *([texts[i] for i in rows] for texts in (sources, hypotheses, references)))
            name = f"over {low}" if high is None else f"{low + 1} to {high}"
            scores.append(LengthScore(name, len(rows), group["bleu"].value))
    return scores


def sentence_scores(metric: SentenceMetric, hypotheses: Iterable[str], reference: str) -> list[float]:
    """Score each sentence against one reference, whose n-grams are counted once.

    chrF, unlike BLEU, tells bad from worse where no word sequence matches.
    """
    against = SENTENCE_METRICS[metric](references=[[reference]])
    return [against.corpus_score([hypothesis], None).score for hypothesis in hypotheses]
