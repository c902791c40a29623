"""Optimizers, learning-rate schedules as functions of the update, and a moving average of the weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from translator.config.options import OptimConfig
from translator.runtime.device import Precision
from translator.runtime.distributed import shard_like
from translator.training.muon import Muon
from translator.training.uncompiled import AdamW

# The last share of a training, in which the rate of the schedule wsd falls.
DECAY_SHARE = 0.4


def build_optimizers(
    model: nn.Module, config: OptimConfig, *, precision: Precision = Precision.FP32, capturable: bool = False
) -> list[Optimizer]:
    """The optimizers of a model's weights: AdamW for all, or Muon for the layers' matrices and AdamW for the rest.

    AdamW: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, fused. Weight decay acts on matrices; biases and
    normalisation scales are free of it. `precision` is that of the model's products: Muon's are in bf16 too where those are.
    `capturable`: for steps that are recorded in CUDA graphs, with learning rates that lie on the GPU.
    """
    matrices, vectors = [p for p in model.parameters() if p.dim() >= 2], [p for p in model.parameters() if p.dim() < 2]
    optimizers: list[Optimizer] = []
    if config.optimizer == "muon":
        # A projection to the vocabulary is AdamW's, as embeddings are: one that is tied is no linear layer.
        maps = [m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "output"]
        dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
        optimizers.append(Muon(maps, lr=config.lr, weight_decay=config.weight_decay, dtype=dtype))
        taken = set(maps)
        matrices = [p for p in matrices if p not in taken]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizers.append(AdamW(
        groups, lr=config.lr, betas=(config.betas[0], config.betas[1]), eps=config.eps, weight_decay=config.weight_decay,
        fused=True, capturable=capturable))
    return optimizers


def state_tensors(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """All that optimizers remember of a training, by the name "optimizer.weight.what", the first two as numbers."""
    return {
        f"{number}.{index}.{what}": tensor for number, optimizer in enumerate(optimizers)
        for index, state in optimizer.state_dict()["state"].items() for what, tensor in state.items()}


def load_state_tensors(optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Give optimizers back what `state_tensors` took from their like."""
    states: list[dict[int, dict[str, Tensor]]] = [defaultdict(dict) for _ in optimizers]
    for name, tensor in tensors.items():
        number, index, what = name.split(".")
        weight = [p for group in optimizers[int(number)].param_groups for p in group["params"]][int(index)]
        alike = tensor.shape == weight.shape  # else a count of steps
        states[int(number)][int(index)][what] = shard_like(tensor, weight) if alike else tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(state)})


def learning_rate(config: OptimConfig, update: int, progress: float) -> float:
    """The learning rate of an update, the first being 1, before which `progress` (0 to 1) of the training is done.

    `optim.lr`, times a linear warm-up, times the schedule: inverse_sqrt as in Vaswani et al. 2017, section 5.3; cosine
    (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983) and linear reach zero at the end, as does wsd, which stays
    until `DECAY_SHARE` is left (Hu et al. 2024, https://arxiv.org/abs/2404.06395, section 4) and then is linear
    (Hägele et al. 2024, https://arxiv.org/abs/2405.18392).
    """
    warmup = max(config.warmup_updates, 1)
    rate = config.lr * min(update / warmup, 1.0)
    match config.schedule:
        case "inverse_sqrt":
            return rate * math.sqrt(warmup / max(update, warmup))
        case "cosine":
            return rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        case "linear":
            return rate * max(0.0, 1 - progress)
        case "wsd":
            return rate * min(1.0, max(0.0, 1 - progress) / DECAY_SHARE)
        case "constant":
            return rate


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
            tensor.copy_(shard_like(weights[name], tensor))
