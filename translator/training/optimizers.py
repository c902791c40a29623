"""Optimizers, learning-rate schedules, and a moving average of the weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from translator.config.options import OptimConfig
from translator.runtime.device import Precision
from translator.runtime.distributed import map_rows, shard_like, stack_full_tensors

MOMENTUM = 0.95
# Polynomials a x + b x^3 + c x^5 of the Newton-Schulz iteration, one per step, that bring singular values of 0.01 to 1 nearest
# to 1 (Polar Express, Amsel et al. 2025, https://arxiv.org/abs/2505.16932, section 3). Five steps of one polynomial are usual;
# three of these cost less, and train better than three of that (docs/recipes.md).
POLYNOMIALS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


def build_optimizers(model: nn.Module, config: OptimConfig, *, precision: Precision = Precision.FP32,
                     capturable: bool = False) -> list[Optimizer]:
    """Build the optimizers of a model with matrix products in `precision`; capturable: by CUDA graphs."""
    return OPTIMIZERS[config.optimizer](model, config, precision, capturable)


def _adamw(model: nn.Module, config: OptimConfig, precision: Precision, capturable: bool,
           others: Collection[Tensor] = ()) -> list[Optimizer]:
    """Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, without `others`. Biases and norms do not decay."""
    weights = [p for p in model.parameters() if p not in others]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.dim() >= 2]}, {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}]
    betas = config.betas[0], config.betas[1]
    return [AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, weight_decay=config.weight_decay, fused=True,
                  capturable=capturable)]


def _muon(model: nn.Module, config: OptimConfig, precision: Precision, capturable: bool) -> list[Optimizer]:
    """Muon for the layers' matrices; AdamW for the rest: embeddings, the projection to the vocabulary, vectors."""
    matrices = [m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "output"]
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    muon = Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, dtype=dtype)
    return [muon, *_adamw(model, config, precision, capturable, set(matrices))]


# To add one: a function here, and its name in `OptimConfig.optimizer`. State must be step counts, or of a weight's shape.
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
    """Return `optim.lr` x a linear warm-up x the schedule. update: from 1. progress: fraction of the training before it."""
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
    "wsd": lambda update, warmup, progress: min(1.0, max(0.0, 1 - progress) / 0.4)}  # decays in the last 40 %


class WeightAverage:
    """Exponential moving average of weights (Polyak and Juditsky 1992): average += (1 - decay) x (weights - average)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        decay = min(self.decay, (1 + updates) / (10 + updates))  # to forget the random start
        for name, p in model.named_parameters():
            self.weights[name].lerp_(p.detach(), 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in self.weights.items():
            tensor.copy_(shard_like(weights[name], tensor))


class Uncompiled(Optimizer):
    """Base of optimizers that are never compiled. PyTorch's import its compiler to keep out of it: 2.4 s of every start."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """PyTorch's AdamW."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class Muon(Uncompiled):
    """Momentum with orthogonalised updates: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    With Nesterov's momentum and decoupled weight decay. An update of a matrix (m, n) is scaled by 0.2 sqrt(max(m, n)), to the
    size of AdamW's (Liu et al. 2025, https://arxiv.org/abs/2502.16982, section 2.2), so that both share a learning rate. The
    iteration runs in `dtype`; PyTorch's own Muon always takes bf16, which is slow on CPUs without bf16 units. Processes share
    the work matrix by matrix; of sharded ones each keeps its part.
    """

    def __init__(self, matrices: Iterable[Tensor], *, lr: float, weight_decay: float = 0.0,
                 dtype: torch.dtype = torch.float32) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient, all of one shape in one batch."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            gradients = [matrix.grad for matrix in matrices]
            for matrix in matrices:
                if not self.state[matrix]:
                    self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
            momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            torch._foreach_lerp_(gradients, momenta, MOMENTUM)  # in place: nobody needs the gradients again
            by_shape: dict[torch.Size, dict[Tensor, Tensor]] = defaultdict(dict)
            for matrix, direction in zip(matrices, gradients, strict=True):
                by_shape[matrix.shape][matrix] = direction
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            for shape, directions in by_shape.items():
                stacked = stack_full_tensors(list(directions.values()))
                updates = map_rows(partial(orthogonalised, dtype=self.dtype), stacked)
                updates = updates.to(torch.float32, memory_format=torch.contiguous_format)
                updates *= -group["lr"] * 0.2 * math.sqrt(max(shape))
                torch._foreach_add_(
                    list(directions), [shard_like(update, matrix) for matrix, update in zip(directions, updates, strict=True)])


def orthogonalised(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about U V^T of every matrix U S V^T of (N, m, n), by Newton-Schulz iteration in `dtype`.

    The singular values come out between 0.73 and 1.27; those below 0.01 of the matrix's norm stay smaller. The steps act on
    the small Gram matrix X X^T only, and X is multiplied once, by the product of their polynomials (Gram Newton-Schulz,
    https://dao-lab.ai/blog/2026/gram-newton-schulz). So few steps leave rounding in bf16 no time to grow.
    """
    wide = matrices.size(1) <= matrices.size(2)
    x = matrices.to(dtype)
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # no singular value above 1, and zeros stay zeros
    gram = x @ x.mT
    factor = factors = _polynomial(gram, *POLYNOMIALS[0])
    for coefficients in POLYNOMIALS[1:]:
        gram = factor @ gram @ factor
        factor = _polynomial(gram, *coefficients)
        factors = factor @ factors
    x = factors @ x
    return x if wide else x.mT


def _polynomial(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a I + b G + c G^2 of every G of (N, m, m)."""
    result = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    result.diagonal(dim1=1, dim2=2).add_(a)
    return result
