"""Optimizers, learning-rate schedules as functions of the update, and a moving average of the weights (floor 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from translator.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101).

    Weight decay acts on matrices; biases and normalisation scales are free of it.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups,
        lr=config.lr, betas=(config.betas[0], config.betas[1]), eps=config.eps, weight_decay=config.weight_decay,
        fused=True)


def learning_rate(config: OptimConfig, update: int, progress: float) -> float:
    """The learning rate of an update, the first being 1, when `progress` (0 to 1) of the training is done.

    A linear warm-up to `optim.lr`, then the schedule: inverse_sqrt as in Vaswani et al. 2017, section 5.3; cosine
    (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983) and linear reach zero at the end.
    """
    warmup = config.warmup_updates
    if update <= warmup:
        return config.lr * update / warmup
    match config.schedule:
        case "inverse_sqrt":
            return config.lr * math.sqrt(max(warmup, 1) / update)
        case "cosine":
            return config.lr * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        case "linear":
            return config.lr * max(0.0, 1 - progress)
        case "constant":
            return config.lr


class WeightAverage:
    """Exponential moving average of a model's weights: average += (1 - decay) x (weights - average).

    Polyak and Juditsky 1992. Early on the decay is held to (1 + n) / (10 + n) after n updates, so that the random start is
    forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        decay = min(self.decay, (1 + updates) / (10 + updates))
        for name, p in model.named_parameters():
            self.weights[name].lerp_(p.detach(), 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in self.weights.items():
            tensor.copy_(weights[name])
