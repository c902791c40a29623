"""What a search is asked for, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from translator.config.options import SearchOptions
from translator.text.tokenizer import PAD_ID

Ids = Sequence[int]
GoesOn = Callable[[int, int], bool]  # whether a token continues the word that the token before it belongs to


@dataclass(frozen=True)
class Hypothesis:
    """A finished output; of several sentences, their sums."""

    ids: tuple[int, ...]  # without BOS and EOS
    log_probability: float  # of all tokens, EOS included
    score: float  # log_probability / length penalty + coverage penalty
    hit_limit: bool  # it ended only because it reached the longest length


@dataclass(frozen=True)
class Demands:
    """What outputs must begin with, must contain and must not contain."""

    prefixes: Sequence[Ids] | None = None  # one a sentence
    phrases: Sequence[Sequence[Ids]] | None = None  # any number a sentence, in any order, each up to the end of a word
    banned: Sequence[Ids] = ()  # for all sentences
    goes_on: GoesOn = lambda last, token: False  # by default every token is a word
    longest: int | None = None  # most tokens before EOS, prefix and phrases included


def width_of(options: SearchOptions) -> int:
    """Return how many hypotheses one search keeps for each sentence; in sampling each is a search of its own."""
    return 1 if options.sampling else options.beam_size


def length_limits(source: Tensor, options: SearchOptions) -> tuple[Tensor, Tensor]:
    """Return the fewest and the most tokens before EOS for each sentence of source (B, S): two of (B,)."""
    lengths = (source != PAD_ID).sum(dim=1).cpu().double()  # as Python multiplies, and not every device
    fewest = (lengths * options.min_length_ratio).long().clamp(min=options.min_length)
    most = (lengths * options.max_length_ratio).long() + options.max_length_extra
    if options.max_length is not None:
        most = most.clamp(max=options.max_length)
    return fewest.minimum(most).to(source.device), most.to(source.device)
