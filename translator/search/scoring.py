"""How outputs are scored: log-probability / length penalty + coverage penalty.

A new length penalty takes an entry in `LENGTH_PENALTIES` and its name in `SearchConfig.length_penalty_form`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from translator.text.tokenizer import PAD_ID

# A penalty must never fall with length (a number or a tensor, EOS counted): the search stops by that.
LENGTH_PENALTIES: dict[str, Callable[[Any, float], Any]] = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, https://arxiv.org/abs/1609.08144, section 7
    "power": lambda length, alpha: length**alpha}  # with alpha 1 the score is the average log-probability of a token


def length_penalty(length: Tensor | int, form: str, alpha: float) -> Any:
    """Return what a log-probability is divided by; length counts EOS."""
    return LENGTH_PENALTIES[form](length, float(alpha))


def coverage_penalty(coverage: Tensor, source: Tensor, beta: float) -> Tensor:
    """Return beta x the sum over source tokens of log(min(attention received, 1)) (Wu et al. 2016, section 7).

    coverage (B, K, S), source (B, S) -> (B, K). At most zero, which means that every source token received its share.
    """
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return beta * logs.masked_fill((source == PAD_ID)[:, None], 0).sum(dim=2)
