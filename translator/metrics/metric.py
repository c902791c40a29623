"""The corpus metrics. A new one is a class in `METRICS`, by its name in `config.options.MetricName`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF, TER

Statistics = NDArray[np.float64]

# sacreBLEU's tokenizer by ISO 639 code, for languages without spaces between words; for all others 13a.
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn"), "zh"), **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char")}


class Metric:
    """Score a corpus by the sum of its sentences' statistics, so that a bootstrap can resample sentences.

    With one reference a sentence. The methods call `scorer`, a metric of sacreBLEU; other metrics override them.
    """

    name: ClassVar[str]  # in tables
    label: ClassVar[str] = ""  # on the console, if different
    lower_is_better: ClassVar[bool] = False
    # Unless train.metric names it: whether validations compute it, and up to how many words a reference on average.
    in_validations: ClassVar[bool] = True
    longest: ClassVar[float] = math.inf
    scorer: Any

    def __init__(self, language: str) -> None:
        """language: of hypotheses and references, as data.target names it."""

    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Statistics:
        """Return K numbers for each of N sentences: (N, K)."""
        return np.array(self.scorer._extract_corpus_statistics(list(hypotheses), [list(references)]), dtype=np.float64)

    def value(self, total: Sequence[float] | Statistics) -> float:
        """Return the score for the sum of statistics: (K,)."""
        return self.scorer._compute_score_from_stats(total).score

    def signature(self) -> str:
        """Say how a score was computed, for others to repeat it; called after `statistics`."""
        return str(self.scorer.get_signature())


class Bleu(Metric):
    """Papineni et al. 2002, https://aclanthology.org/P02-1040, on words as they are counted in the language."""

    name = "BLEU"

    def __init__(self, language: str) -> None:
        self.scorer = BLEU(tokenize="char")
        with suppress(RuntimeError):  # a tokenizer that needs `pip install sacrebleu[ja]`
            self.scorer = BLEU(tokenize=tokenizer_of(language))


class Chrf(Metric):
    """F-score of character n-grams (Popović 2015, https://aclanthology.org/W15-3049), with beta 2."""

    name, label = "chrF2", "chrF"

    def __init__(self, language: str) -> None:
        self.scorer = CHRF()


class Ter(Metric):
    """Translation edit rate (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25)."""

    name = "TER"
    lower_is_better = True
    # sacreBLEU takes 0.03 s for a pair of texts of 31 words, 0.3 s of 58 and 4 s of 113.
    in_validations = False
    longest = 40

    def __init__(self, language: str) -> None:
        ideographs = tokenizer_of(language) in ("zh", "ja-mecab")
        self.scorer = TER(normalized=ideographs, asian_support=ideographs)


METRICS: dict[str, type[Metric]] = {"bleu": Bleu, "chrf": Chrf, "ter": Ter}


def tokenizer_of(language: str) -> str:
    """Return sacreBLEU's name of a tokenizer. language: a code such as zh, zh_CN or zho-Hans; not my_answer."""
    code = re.fullmatch(r"([a-z]{2,3})([-_]([A-Za-z]{2}|[A-Z][a-z]{3}|[0-9]{3}))*", language)
    return TOKENIZERS.get(code[1], BLEU.TOKENIZER_DEFAULT) if code else BLEU.TOKENIZER_DEFAULT
