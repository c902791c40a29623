"""What a search is asked for, and how its outputs are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translator.config.options import SearchConfig
from translator.text.tokenizer import PAD_ID

Ids = Sequence[int]
GoesOn = Callable[[int, int], bool]  # whether a token goes on with the word that the one before it ends


@dataclass(frozen=True)
class Hypothesis:
    """A finished output."""

    ids: tuple[int, ...]  # without BOS and EOS
    log_probability: float  # of all its tokens, EOS among them
    # log_probability / length_penalty(tokens, EOS among them) + coverage_penalty; of several sentences the sum of theirs
    score: float
    hit_limit: bool  # as long as is allowed: it could but end


@dataclass(frozen=True)
class Demands:
    """What outputs must begin with, must contain and must not contain."""

    prefixes: Sequence[Ids] | None = None  # one a sentence
    phrases: Sequence[Sequence[Ids]] | None = None  # any number a sentence, in any order, each up to the end of a word
    banned: Sequence[Ids] = ()  # for all sentences
    goes_on: GoesOn = lambda last, token: False  # by default every token is a word
    longest: int | None = None  # tokens before EOS that no output may pass, prefix and phrases counted


def length_penalty(length: Tensor | int, config: SearchConfig) -> Any:
    """What a log-probability is divided by; length counts EOS. It never falls with length.

    gnmt: ((5 + length) / 6) ^ alpha (Wu et al. 2016, https://arxiv.org/abs/1609.08144, section 7); power: length ^ alpha, which
    with alpha 1 makes the score the average log-probability of a token.
    """
    base = (5 + length) / 6 if config.length_penalty_form == "gnmt" else length
    return base ** float(config.length_penalty)


def coverage_penalty(coverage: Tensor, source: Tensor, beta: float) -> Tensor:
    """beta x the sum over source tokens of log(min(attention they have had, 1)) (Wu et al. 2016, section 7).

    coverage (B, K, S), source (B, S) -> (B, K). Never positive: zero where every source token had its share.
    """
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return beta * logs.masked_fill((source == PAD_ID)[:, None], 0).sum(dim=2)


def length_limits(source: Tensor, config: SearchConfig) -> tuple[Tensor, Tensor]:
    """The fewest and the most tokens before EOS for each sentence of source (B, S), from its own length: two of (B,)."""
    lengths = (source != PAD_ID).sum(dim=1).cpu().double()  # as Python multiplies, and not every device
    fewest = (lengths * config.min_length_ratio).long().clamp(min=config.min_length)
    most = (lengths * config.max_length_ratio).long() + config.max_length_extra
    if config.max_length is not None:
        most = most.clamp(max=config.max_length)
    return fewest.minimum(most).to(source.device), most.to(source.device)
