"""Optimizers, learning-rate schedules, and a moving average of the weights.

To add an optimizer or a schedule, write a function and name it in `OPTIMIZERS` or `SCHEDULES`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from translator.config.options import OptimConfig
from translator.runtime.device import Precision
from translator.runtime.distributed import shard_like
from translator.training.muon import Muon
from translator.training.uncompiled import AdamW

# The last fraction of a training, in which the schedule wsd decays.
DECAY_FRACTION = 0.4


def build_optimizers(
    model: nn.Module, config: OptimConfig, *, precision: Precision = Precision.FP32, capturable: bool = False
) -> list[Optimizer]:
    """Build the optimizers of a model's weights.

    precision: that of the model's matrix products. capturable: steps can be captured in CUDA graphs, with learning rates on
    the GPU.
    """
    return OPTIMIZERS[config.optimizer](list(model.parameters()), model, config, precision, capturable)


def _adamw(
    weights: Sequence[nn.Parameter], model: nn.Module, config: OptimConfig, precision: Precision, capturable: bool
) -> list[Optimizer]:
    """Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101. Biases and normalisation scales do not decay."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.dim() >= 2]}, {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}]
    return [AdamW(
        groups, lr=config.lr, betas=(config.betas[0], config.betas[1]), eps=config.eps, weight_decay=config.weight_decay,
        fused=True, capturable=capturable)]


def _muon(
    weights: Sequence[nn.Parameter], model: nn.Module, config: OptimConfig, precision: Precision, capturable: bool
) -> list[Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest: embeddings, the projection to the vocabulary, vectors."""
    matrices = [m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "output"]
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    of_muon = set(matrices)
    return [
        Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, dtype=dtype),
        *_adamw([p for p in weights if p not in of_muon], model, config, precision, capturable)]


OPTIMIZERS: dict[str, Callable[..., list[Optimizer]]] = {"adamw": _adamw, "muon": _muon}


def state_tensors(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return the state of optimizers by the name "optimizer.weight.what", the first two as numbers."""
    return {
        f"{number}.{index}.{what}": tensor for number, optimizer in enumerate(optimizers)
        for index, state in optimizer.state_dict()["state"].items() for what, tensor in state.items()}


def load_state_tensors(optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Load what `state_tensors` returned for optimizers of the same weights."""
    states: list[dict[int, dict[str, Tensor]]] = [defaultdict(dict) for _ in optimizers]
    for name, tensor in tensors.items():
        number, index, what = name.split(".")
        weight = [p for group in optimizers[int(number)].param_groups for p in group["params"]][int(index)]
        alike = tensor.shape == weight.shape  # else a count of steps
        states[int(number)][int(index)][what] = shard_like(tensor, weight) if alike else tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(state)})


def learning_rate(config: OptimConfig, update: int, progress: float) -> float:
    """Return `optim.lr` times a linear warm-up times the schedule.

    update: from 1. progress: the fraction of the training done before it, 0 to 1.
    """
    warmup = max(config.warmup_updates, 1)
    return config.lr * min(update / warmup, 1.0) * SCHEDULES[config.schedule](update, warmup, progress)


# Factors of the learning rate. inverse_sqrt: Vaswani et al. 2017, section 5.3; cosine: Loshchilov and Hutter 2017,
# https://arxiv.org/abs/1608.03983; wsd: Hu et al. 2024, https://arxiv.org/abs/2404.06395, section 4, with the linear decay of
# Hägele et al. 2024, https://arxiv.org/abs/2405.18392.
SCHEDULES: dict[str, Callable[[int, int, float], float]] = {
    "constant": lambda update, warmup, progress: 1.0,
    "inverse_sqrt": lambda update, warmup, progress: math.sqrt(warmup / max(update, warmup)),
    "cosine": lambda update, warmup, progress: 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))),
    "linear": lambda update, warmup, progress: max(0.0, 1 - progress),
    "wsd": lambda update, warmup, progress: min(1.0, max(0.0, 1 - progress) / DECAY_FRACTION)}


class WeightAverage:
    """Exponential moving average of a model's weights: average += (1 - decay) x (weights - average).

    Polyak and Juditsky 1992. After n updates the decay is at most (1 + n) / (10 + n), to forget the random start.
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
            tensor.copy_(shard_like(weights[name], tensor))
