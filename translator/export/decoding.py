"""How other programs must search to find what we find."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from translator.config.options import ModelConfig, SearchConfig

# Tokens of a translation, where the run does not tell.
TYPICAL_LENGTH = 20


@dataclass(frozen=True)
class Decoding:
    """A beam search that scores by log-probability / length ^ length_penalty, EOS counted in the length."""

    search: SearchConfig
    length_penalty: float
    positions: int  # that sources and outputs may reach

    @classmethod
    def nearest(cls, search: SearchConfig, model: ModelConfig, mean_length: float | None) -> Decoding:
        """To `search`, for outputs of this mean length; UserError for options that other programs lack or read otherwise."""
        search.require_like(expressible(search, search.beam_size), "an export carries plain beam search alone")
        return cls(search, _power(search, mean_length or TYPICAL_LENGTH), _positions(search, model))

    def most(self, source: int) -> int:
        """The most tokens of an output before EOS, of a source of so many, EOS counted."""
        most = int(self.search.max_length_ratio * source) + self.search.max_length_extra
        return most if self.search.max_length is None else min(self.search.max_length, most)

    def limit(self, source: str) -> str:
        """The same as a Python expression, of that for the tokens of the source."""
        limit = f"int({self.search.max_length_ratio} * {source}) + {self.search.max_length_extra}"
        return limit if self.search.max_length is None else f"min({self.search.max_length}, {limit})"


def expressible(search: SearchConfig, beam_size: int) -> SearchConfig:
    """What of `search` other programs have too."""
    return dataclasses.replace(
        search.plain(beam_size), coverage_penalty=0.0, min_length=1, min_length_ratio=0.0, no_repeat_ngram=0,
        repetition_penalty=1.0, copy_unknown=False, language=None)


def _power(search: SearchConfig, length: float) -> float:
    """The exponent of the length. For gnmt, which others lack, that of the penalty that grows alike at this length.

    The slope of log(((5 + length) / 6) ^ alpha) is alpha / (5 + length), and that of log(length ^ beta) is beta / length.
    """
    if search.length_penalty_form == "power":
        return search.length_penalty
    return round(search.length_penalty * length / (5 + length), 2)


def _positions(search: SearchConfig, model: ModelConfig) -> int:
    """What the longest source takes, or the longest output and BOS before it; of learned positions, those there are."""
    if model.positions == "learned":
        return model.max_positions
    output = int(search.max_source_tokens * search.max_length_ratio) + search.max_length_extra
    return max(search.max_source_tokens, 1 + min(output, search.max_length or output))
