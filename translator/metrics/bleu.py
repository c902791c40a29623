"""BLEU, on words as they are counted in the language."""

from __future__ import annotations

import re
from contextlib import suppress

from sacrebleu.metrics import BLEU

from translator.metrics.metric import SacreBleuMetric

# sacreBLEU's tokenizer by ISO 639 code, for languages without spaces between words; for all others 13a.
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn"), "zh"), **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char")}


class Bleu(SacreBleuMetric):
    """Papineni et al. 2002, https://aclanthology.org/P02-1040."""

    name = "BLEU"

    def __init__(self, language: str) -> None:
        self.scorer = BLEU(tokenize="char")
        with suppress(RuntimeError):  # a tokenizer that needs `pip install sacrebleu[ja]`
            self.scorer = BLEU(tokenize=tokenizer_of(language))


def tokenizer_of(language: str) -> str:
    """Return sacreBLEU's name of a tokenizer. language: a code such as zh, zh_CN or zho-Hans; not my_answer."""
    code = re.fullmatch(r"([a-z]{2,3})([-_]([A-Za-z]{2}|[A-Z][a-z]{3}|[0-9]{3}))*", language)
    return TOKENIZERS.get(code[1], BLEU.TOKENIZER_DEFAULT) if code else BLEU.TOKENIZER_DEFAULT


METRIC = Bleu
