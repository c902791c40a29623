"""Warn of a source in a language that the model does not read, and of a translation that the model is unsure of."""

from __future__ import annotations

import math
from collections.abc import Mapping

from translator.config.options import SearchConfig
from translator.search.hypothesis import Hypothesis
from translator.text.language import foreign, name_of

NAMED = 4  # most languages that a warning names


def foreign_source(text: str, languages: tuple[str, ...]) -> str:
    """Return a warning if a text is in none of the languages that a model reads; those without a known code warn of nothing."""
    code = foreign(text, languages)
    if not code:
        return ""
    read = " or ".join(map(name_of, languages)) if len(languages) <= NAMED else f"{len(languages)} other languages"
    return f"this looks like {name_of(code)}; this model reads {read}"


def mean_log_probability(hypothesis: Hypothesis, sentences: int = 1) -> float:
    """Return the mean log-probability of an output's tokens, EOS of each sentence counted."""
    return hypothesis.log_probability / (len(hypothesis.ids) + sentences)


def low_certainty(hypothesis: Hypothesis, search: SearchConfig, low: Mapping[int, float]) -> str:
    """Return a warning if the mean log-probability of an output is lower than for almost all sentences of validation.

    low: what is low, by beam size, as `calibration.json` has it: a wider beam finds likelier outputs. Sampling has none.
    """
    known = [beam for beam in low if beam <= search.beam_size]
    mean = mean_log_probability(hypothesis)
    if search.sampling or not known or not mean < low[max(known)]:
        return ""
    return f"the model is unsure of this translation: the mean probability of a token is {100 * math.exp(mean):.0f} %"
