"""The options of `SearchConfig`, split into those of each stage of a translation."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Literal

from translator.config.options import SearchConfig
from translator.search import SearchOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanningOptions:
    """How text becomes units to search."""

    language: str | None
    max_source_tokens: int
    split_sentences: Literal["auto", "always", "never"]
    prefix: str
    required: tuple[str, ...]
    banned: tuple[str, ...]
    terminology: str | None
    plain_beam: bool  # the search can take required phrases


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """How outputs become translations."""

    n_best: int
    mbr: Literal["chrf", "bleu"] | None
    copy_unknown: bool
    distinct: bool  # no two translations alike
    banned: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """The options of all stages, made once from the user's."""

    planning: PlanningOptions
    search: SearchOptions
    ranking: RankingOptions
    shortlist: int
    batch_tokens: int | Literal["auto"]

    @classmethod
    @lru_cache
    def from_config(cls, config: SearchConfig) -> TranslationOptions:
        n_best = config.n_best
        if config.mbr:
            n_best = config.most_outputs
        elif n_best > 1:  # some to spare, for outputs that are spelled alike
            n_best = min(config.most_outputs, 2 * n_best)
        return cls(
            planning=PlanningOptions(
                language=config.language, max_source_tokens=config.max_source_tokens, split_sentences=config.split_sentences,
                prefix=config.prefix, required=config.required, banned=config.banned, terminology=config.terminology,
                plain_beam=not (config.sampling or config.groups > 1 or config.keep_places)),
            search=dataclasses.replace(SearchOptions.from_config(config), n_best=n_best),
            ranking=RankingOptions(
                n_best=config.n_best, mbr=config.mbr, copy_unknown=config.copy_unknown, distinct=not config.sampling,
                banned=config.banned),
            shortlist=config.shortlist, batch_tokens=config.batch_tokens)
