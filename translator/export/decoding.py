"""How another program must search to find the same translations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from translator.config.options import ModelConfig, SearchConfig
from translator.runtime.errors import UserError

# Options of a search that exports carry, or that change nothing in plain beam search. Every other one must be off.
CARRIED = frozenset((
    "beam_size", "keep_places", "patience", "length_penalty", "length_penalty_form", "max_length", "max_length_ratio",
    "max_length_extra", "max_source_tokens", "split_sentences", "batch_tokens", "diversity", "seed"))
# Tokens of a translation, if the run does not say.
TYPICAL_LENGTH = 20


@dataclass(frozen=True)
class Decoding:
    """A beam search that scores by log-probability / length ^ length_penalty, EOS counted in the length."""

    search: SearchConfig
    length_penalty: float
    positions: int  # that sources and outputs may reach

    @classmethod
    def nearest(cls, search: SearchConfig, model: ModelConfig, mean_length: float | None) -> Decoding:
        """Return the decoding nearest to `search` for outputs of this mean length.

        Raises UserError for an option that other programs lack or read differently.
        """
        for option, off in _off(search).items():
            if (value := getattr(search, option)) != off:
                raise UserError(f"search.{option}={value}: an export carries plain beam search only. Leave this option out.")
        return cls(search, _power(search, mean_length or TYPICAL_LENGTH), _positions(search, model))

    def most(self, source: int) -> int:
        """Return the most tokens of an output, EOS not counted, for a source of `source` tokens, EOS counted."""
        most = int(self.search.max_length_ratio * source) + self.search.max_length_extra
        return most if self.search.max_length is None else min(self.search.max_length, most)

    def limit(self, source: str) -> str:
        """Return `most` as a Python expression of the expression `source`."""
        limit = f"int({self.search.max_length_ratio} * {source}) + {self.search.max_length_extra}"
        return limit if self.search.max_length is None else f"min({self.search.max_length}, {limit})"


def expressible(search: SearchConfig, beam_size: int) -> SearchConfig:
    """Return `search` with all options off that no export carries."""
    return dataclasses.replace(search, **(_off(search) | {"beam_size": beam_size}))


def _off(search: SearchConfig) -> dict[str, Any]:
    """Return the values by which options are off, of all that no export carries; options added later are among them."""
    defaults = {field.name: field.default for field in dataclasses.fields(search) if field.name not in CARRIED}
    return defaults | {"n_best": 1, "min_length": 1}


def _power(search: SearchConfig, length: float) -> float:
    """Return the exponent of the length. For gnmt, which others lack, that of the penalty that grows alike at this length.

    The slope of log(((5 + length) / 6) ^ alpha) is alpha / (5 + length), and that of log(length ^ beta) is beta / length.
    """
    match search.length_penalty_form:
        case "power":
            return search.length_penalty
        case "gnmt":
            return round(search.length_penalty * length / (5 + length), 2)
    raise UserError(f"search.length_penalty_form={search.length_penalty_form}: not supported by exports. Use power or gnmt.")


def _positions(search: SearchConfig, model: ModelConfig) -> int:
    """Return the positions of the longest source, or of the longest output and BOS; of learned positions, all there are."""
    if model.positions == "learned":
        return model.max_positions
    output = int(search.max_source_tokens * search.max_length_ratio) + search.max_length_extra
    return max(search.max_source_tokens, 1 + min(output, search.max_length or output))
