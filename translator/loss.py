"""Label-smoothed cross-entropy of a projection to the vocabulary, as a sum over tokens (floor 1).

Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7; Vaswani et al. 2017, section 5.4. The caller divides
once, by the real target tokens of a whole update, so that batches weigh what they hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Logits held at once: on a CPU what its caches still hold, on a GPU enough to keep it busy.
LOGITS_AT_ONCE = {"cpu": 2**23, "cuda": 2**28}


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of softmax(hidden weight^T) to (1 - smoothing) x one-hot + smoothing x uniform, summed over N tokens.

    hidden (N, D), weight (V, D), targets (N,) -> that sum, and the plain sum of -log p(target) that perplexity is made of
    and that has no gradient; both scalars in float32. Products run in autocast's precision.

    The projection is part of the function so that the logits, (N, V) and often the largest tensor of all, never exist whole:
    it works through the tokens a chunk at a time, and leaves of each chunk only what it adds to the gradients.
    """
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else hidden.dtype
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss, nll = _ProjectedCrossEntropy.apply(hidden, weight, targets, smoothing, dtype, needs_gradient)
    return loss, nll.detach()


class _ProjectedCrossEntropy(torch.autograd.Function):
    """With p = softmax(hidden weight^T) and q the smoothed targets, the logits' gradient is p - q.

    So hidden's is (p - q) weight and weight's (p - q)^T hidden. What the uniform part of q adds to either is the same for
    every token, or for every word, and is taken off by itself: only its one-hot part is taken from p.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, dtype: torch.dtype, needs_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        uniform = smoothing / len(weight)
        words = weight.to(dtype)
        sum_of_words = weight.sum(0, dtype=torch.float32)
        hidden_gradient = torch.empty_like(hidden) if needs_gradient else None
        weight_gradient = (-uniform * hidden.sum(0)).expand_as(weight).clone() if needs_gradient else None
        loss = torch.zeros((), device=hidden.device)
        nll = torch.zeros((), device=hidden.device)
        rows = max(1, LOGITS_AT_ONCE.get(hidden.device.type, 2**23) // len(weight))
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            h, target = hidden[chunk].to(dtype), targets[chunk, None]
            logits = h @ words.T
            p = logits.softmax(-1)
            # log p = logit - log_normaliser holds for the likeliest word too, whose p is never rounded to nothing.
            log_normaliser = logits.amax(-1).float() - p.amax(-1).float().log()
            target_nll = log_normaliser - logits.gather(1, target)[:, 0]
            nll += target_nll.sum()
            loss += (1 - smoothing) * target_nll.sum()
            if smoothing:
                loss += smoothing * log_normaliser.sum() - uniform * (hidden[chunk].sum(0, dtype=torch.float32) @ sum_of_words)
            if hidden_gradient is not None and weight_gradient is not None:
                p.scatter_add_(1, target, p.new_full((1, 1), smoothing - 1).expand_as(target))
                hidden_gradient[chunk] = p @ words - uniform * sum_of_words
                weight_gradient += p.T @ h
        if hidden_gradient is not None and weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, of_nll: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * of_loss, weight_gradient * of_loss, None, None, None, None
