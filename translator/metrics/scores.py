"""Translation scores through sacrebleu, with signatures, significance and scores by length.

Post 2018, "A Call for Clarity in Reporting BLEU Scores", https://arxiv.org/abs/1804.08771. Always on detokenised text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from translator.text.writing_systems import UNSPACED

LOWER_IS_BETTER = {"ter", "loss", "perplexity"}
# A word, or a letter of a script that puts no spaces between words.
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
# Upper bounds, in source words, of the groups that `scores_by_length` makes; the last has none.
LENGTH_BOUNDS = (5, 10, 15, 20, 30, 50)
BOOTSTRAP_SAMPLES = 1000
# Words of a reference, on average, up to which TER is computed unasked: sacreBLEU took 0.03 s for a pair of texts of 31 words,
# 0.3 s of 58 and 4 s of 113.
LONGEST_TER = 40

# What sacreBLEU takes for a word, by ISO 639 code, of languages that put no spaces between words; of all others 13a.
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn"), "zh"), **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char")}

SentenceMetric = Literal["chrf", "bleu"]
# BLEU of a sentence counts the orders of n-grams that it is long enough to have.
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
    """Whether `a` is a better value of `metric` than `b`."""
    return a < b if metric in LOWER_IS_BETTER else a > b


def score(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, ter: bool | None = None
) -> dict[str, Score]:
    """BLEU, chrF and TER of a corpus with one reference a sentence, by the names bleu, chrf and ter.

    language: of both, as data.target names it: in some, words are told apart in a way of their own. ter: whether TER is among
    them; None: unless the references are long (`LONGEST_TER`).
    """
    metrics = _metrics(language, ter=_short_for_ter(references) if ter is None else ter)
    return {name: _corpus_score(metric, hypotheses, references) for name, metric in metrics.items()}


def scores_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], language: str
) -> list[LengthScore]:
    """BLEU of the sentences in each group of source lengths, in words; groups without sentences are left out."""
    lengths = [max(1, len(WORD.findall(source))) for source in sources]
    scores, bleu = [], _bleu(language)
    for low, high in zip((0, *LENGTH_BOUNDS), (*LENGTH_BOUNDS, None), strict=True):
        rows = [i for i, n in enumerate(lengths) if n > low and (high is None or n <= high)]
        if rows:
            group = _corpus_score(bleu, [hypotheses[i] for i in rows], [references[i] for i in rows])
            name = f"over {low}" if high is None else f"{low + 1} to {high}"
            scores.append(LengthScore(name, len(rows), group.value))
    return scores


def sentence_scores(metric: SentenceMetric, hypotheses: Sequence[str], reference: str) -> list[float]:
    """Score of each sentence against one reference, whose n-grams are counted once.

    chrF, unlike BLEU, tells bad from worse where no word sequence matches.
    """
    against = SENTENCE_METRICS[metric](references=[[reference]])
    return [against.corpus_score([hypothesis], None).score for hypothesis in hypotheses]


def paired_bootstrap(
    systems: Sequence[tuple[str, Sequence[str]]], references: Sequence[str], language: str
) -> list[Comparison]:
    """Compare (name, hypotheses) of several systems with the first of them by paired bootstrap resampling.

    Koehn 2004, https://aclanthology.org/W04-3250; `BOOTSTRAP_SAMPLES` samples from a fixed seed. By the metrics of `score`.
    """
    metrics = _metrics(language, ter=_short_for_ter(references))
    test = PairedTest(
        [(name, list(hypotheses)) for name, hypotheses in systems], metrics, [list(references)], test_type="bs",
        n_samples=BOOTSTRAP_SAMPLES)
    results: dict[str, list[Any]] = test()[1]
    comparisons = []
    for metric, of_systems in results.items():
        if metric == "System":
            continue
        for (system, hypotheses), result in zip(systems, of_systems, strict=True):
            p_value = result.p_value
            if p_value is not None and list(hypotheses) == list(systems[0][1]):
                p_value = 1.0  # sacrebleu takes equal outputs for a sure difference, since no sample exceeds it
            comparisons.append(
                Comparison(system, metric, float(result.score), float(result.mean), float(result.ci), p_value))
    return comparisons


def _short_for_ter(references: Sequence[str]) -> bool:
    """Whether TER of such texts is had before anybody minds."""
    return sum(len(WORD.findall(text)) for text in references) <= LONGEST_TER * len(references)


def _metrics(language: str, *, ter: bool) -> dict[str, Any]:
    metrics = {"bleu": _bleu(language), "chrf": CHRF()}
    if ter:
        ideographs = _tokenizer(language) in ("zh", "ja-mecab")
        metrics["ter"] = TER(normalized=ideographs, asian_support=ideographs)
    return metrics


def _bleu(language: str) -> BLEU:
    with suppress(RuntimeError):  # a tokenizer that takes what `pip install sacrebleu[ja]` installs
        return BLEU(tokenize=_tokenizer(language))
    return BLEU(tokenize="char")


def _tokenizer(language: str) -> str:
    """sacreBLEU's name of it. `language`: a code such as zh, zh_CN or zho-Hans; any other name, such as my_answer, is none."""
    code = re.fullmatch(r"([a-z]{2,3})([-_]([A-Za-z]{2}|[A-Z][a-z]{3}|[0-9]{3}))*", language)
    return TOKENIZERS.get(code[1], BLEU.TOKENIZER_DEFAULT) if code else BLEU.TOKENIZER_DEFAULT


def _corpus_score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    if not hypotheses:
        raise ValueError("no sentences to score")
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.name, result.score, str(metric.get_signature()))
