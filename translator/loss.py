"""Label-smoothed cross-entropy as a sum over tokens (floor 1).

Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7; Vaswani et al. 2017, section 5.4. The caller divides
once, by the real target tokens of a whole update, so that batches weigh what they hold.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def label_smoothed_cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float) -> Tensor:
    """Sum over N tokens of the cross-entropy to (1 - smoothing) x one-hot + smoothing x uniform.

    logits (N, V), targets (N,) -> scalar, float32.
    """
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="sum")


@torch.no_grad()
def negative_log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of -log p(target) over N tokens: what perplexity is made of, without smoothing."""
    return F.cross_entropy(logits.float(), targets, reduction="sum")
