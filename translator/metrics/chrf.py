"""chrF, the F-score of character n-grams."""

from __future__ import annotations

from sacrebleu.metrics import CHRF

from translator.metrics.metric import SacreBleuMetric


class Chrf(SacreBleuMetric):
    """Popović 2015, https://aclanthology.org/W15-3049, with beta 2."""

    name, label = "chrF2", "chrF"

    def __init__(self, language: str) -> None:
        self.scorer = CHRF()


METRIC = Chrf
