"""The options that shape the search itself: part of `SearchConfig`, as the engine takes them."""

from __future__ import annotations

import dataclasses
import math

from translator.config.options import SearchConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Beam search or sampling; conf/search explains each option. The defaults are greedy search."""

    beam_size: int = 1
    n_best: int = 1
    places_stay: bool = False
    awaited: float = math.inf  # finished hypotheses after which a sentence is done
    groups: int = 1
    diversity: float = 0.0
    length_penalty: float = 0.0
    length_penalty_form: str = "gnmt"
    coverage_penalty: float = 0.0
    min_length: int = 1
    min_length_ratio: float = 0.0
    max_length: int | None = None
    max_length_ratio: float = 0.0
    max_length_extra: int = 1
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    copy_unknown: bool = False  # the unknown piece may be produced
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    @classmethod
    def from_config(cls, config: SearchConfig) -> SearchOptions:
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})

    @property
    def samples(self) -> int:
        """Independent searches for each sentence."""
        return self.beam_size if self.sampling else 1

    @property
    def width(self) -> int:
        """Hypotheses that one search keeps for each sentence."""
        return self.beam_size // self.samples

    @property
    def finished_kept(self) -> int:
        """Finished hypotheses that one search keeps for each sentence: all of several groups, which may find equal ones."""
        return self.width if self.groups > 1 else min(self.n_best, self.width)

    @property
    def max_continuations(self) -> int:
        """Continuations of a sentence that survive a step: one a place, twice as many where places stay, as some may end."""
        return self.width * (2 if self.places_stay else 1)
