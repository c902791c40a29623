"""The corpus metrics. A new one is a class in `METRICS`, by its name in `config.options.MetricName`."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.utils import SACREBLEU_DIR

from translator.runtime.errors import UserError

Statistics = NDArray[np.float64]

# sacreBLEU's tokenizer by ISO 639 code, for languages without spaces between words; for all others 13a.
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn"), "zh"), **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char")}


class Metric:
    """Score a corpus by the sum of its sentences' statistics, so that a bootstrap can resample sentences.

    The methods call `scorer`, a metric of sacreBLEU; other metrics override them.
    """

    name: ClassVar[str]  # in tables
    label: ClassVar[str] = ""  # on the console, if different
    lower_is_better: ClassVar[bool] = False
    # Computed in these places even if nobody names it, if the mean reference has between `words` words.
    usual: ClassVar[Collection[str]] = ("evaluation", "validation")
    words: ClassVar[tuple[float, float]] = (0, math.inf)
    scorer: Any

    def __init__(self, language: str) -> None:
        """language: of hypotheses and references, as data.target names it."""

    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], *references: Sequence[str]) -> Statistics:
        """Return K numbers for each of N sentences: (N, K). references: one list or more, of one for each sentence."""
        return np.array(self.scorer._extract_corpus_statistics(list(hypotheses), list(map(list, references))), dtype=np.float64)

    def value(self, total: Sequence[float] | Statistics) -> float:
        """Return the score for the sum of statistics: (K,)."""
        return self.scorer._compute_score_from_stats(total).score

    def signature(self) -> str:
        """Say how a score was computed, for others to repeat it; called after `statistics`."""
        return str(self.scorer.get_signature())


class Bleu(Metric):
    """Papineni et al. 2002, https://aclanthology.org/P02-1040, on words as they are counted in the language."""

    name = "BLEU"
    words = (2.5, math.inf)  # shorter ones have no n-grams to speak of

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
    usual = ("evaluation",)
    words = (0, 40)

    def __init__(self, language: str) -> None:
        ideographs = tokenizer_of(language) in ("zh", "ja-mecab")
        self.scorer = TER(normalized=ideographs, asian_support=ideographs)


class ChrfPlusPlus(Chrf):
    """chrF with n-grams of one and two words besides (Popović 2017, https://aclanthology.org/W17-4770)."""

    name, label = "chrF2++", "chrF++"
    usual = ()

    def __init__(self, language: str) -> None:
        self.scorer = CHRF(word_order=2)


class SpBleu(Bleu):
    """BLEU on the pieces of one SentencePiece model for 200 languages (NLLB team 2022, https://arxiv.org/abs/2207.04672).

    sacreBLEU downloads the model when it is first used; UserError if that fails.
    """

    name = "spBLEU"
    usual = ()

    def __init__(self, language: str) -> None:
        try:
            self.scorer = BLEU(tokenize="flores200")
        except (Exception, SystemExit) as error:  # of any kind: the download is sacreBLEU's
            file = Path(SACREBLEU_DIR, "models", "flores200sacrebleuspm")
            raise UserError(f"metric spbleu: its tokenizer could not be loaded: {error}. Check the network, or copy {file} "
                            "from a machine that has it.") from error


class Exact(Metric):
    """Share of outputs that equal a reference, in per cent: the accuracy of classification as text to text."""

    name = "exact"
    words: ClassVar = (0, 2.5)

    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], *references: Sequence[str]) -> Statistics:
        equal = [h.split() in map(str.split, rs) for h, *rs in zip(hypotheses, *references, strict=True)]
        return np.stack([np.array(equal, dtype=np.float64), np.ones(len(equal))], axis=1)

    def value(self, total: Sequence[float] | Statistics) -> float:
        return 100 * float(total[0]) / float(total[1])

    def signature(self) -> str:
        return "case:mixed|space:single"


class Comet(Exact):
    """COMET (Rei et al. 2020, https://arxiv.org/abs/2009.09025) by the command comet-score, times 100.

    Its requirements clash with this project's: install unbabel-comet in an environment of its own, and add its folder of
    commands to PATH. It knows one reference a sentence, the first. UserError if the command is missing or fails.
    """

    name = "COMET"
    usual = ()
    words = (0, math.inf)

    def __init__(self, language: str) -> None:
        if shutil.which("comet-score") is None:
            raise UserError("metric comet: the command comet-score was not found. Install unbabel-comet in an environment of "
                            "its own, and add its bin folder to PATH (docs/evaluation.md).")

    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], *references: Sequence[str]) -> Statistics:
        found = comet_scores(tuple(sources), tuple(hypotheses), tuple(references[0]))
        return np.array([(score, 1) for score in found], dtype=np.float64)

    def signature(self) -> str:
        return "comet-score, its default model"


@lru_cache(maxsize=4)  # a test set is scored by minutes of work, and scored again when it is compared
def comet_scores(*texts: tuple[str, ...]) -> list[float]:
    """Return the COMET of each sentence, given sources, hypotheses and references; UserError where comet-score fails."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("source", "hypothesis", "reference", "scores.json")]
        for file, lines in zip(files, texts, strict=False):
            file.write_text("".join(f"{' '.join(line.split())}\n" for line in lines), encoding="utf-8")
        source, hypothesis, reference, scores = map(str, files)
        command = ["comet-score", "-s", source, "-t", hypothesis, "-r", reference, "--to_json", scores]
        try:
            subprocess.run(command, check=True, capture_output=True)
            [rows] = json.loads(files[3].read_bytes()).values()
            return [float(row["COMET"]) for row, _ in zip(rows, texts[0], strict=True)]
        except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "stderr", b"").decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
            raise UserError(f"metric comet: comet-score failed: {reason[0]}") from error


METRICS: dict[str, type[Metric]] = {
    "bleu": Bleu, "exact": Exact, "chrf": Chrf, "ter": Ter, "chrf++": ChrfPlusPlus, "spbleu": SpBleu, "comet": Comet}


def tokenizer_of(language: str) -> str:
    """Return sacreBLEU's name of a tokenizer. language: a code such as zh, zh_CN or zho-Hans; not my_answer."""
    code = re.fullmatch(r"([a-z]{2,3})([-_]([A-Za-z]{2}|[A-Z][a-z]{3}|[0-9]{3}))*", language)
    return TOKENIZERS.get(code[1], BLEU.TOKENIZER_DEFAULT) if code else BLEU.TOKENIZER_DEFAULT
