"""One update of a model: loss and gradient of its batches, clipping, a step of the optimizers (floor 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from translator.batching import Batch
from translator.config import OptimConfig, TrainConfig
from translator.device import autocast
from translator.loss import projected_cross_entropy
from translator.model import Transformer
from translator.optim import build_optimizers


@dataclass(frozen=True)
class Step:
    """What one step of the optimizers measured."""

    tokens: int  # real target tokens
    loss: Tensor  # a token, smoothed
    nll: Tensor  # a token
    gradient_norm: Tensor  # before clipping
    learning_rate: float


class Updater:
    """Updates `model`, where it lies, with matrix products in `precision`."""

    def __init__(self, model: Transformer, optim: OptimConfig, train: TrainConfig, *, precision: torch.dtype) -> None:
        self.model = model
        self.optim = optim
        self.train = train
        self.precision = precision
        self.device = next(model.parameters()).device
        self.optimizers = build_optimizers(model, optim)
        self._hidden = torch.compile(model.hidden, dynamic=True) if train.compile else model.hidden
        # What profiles show by name; a benchmark puts its own here.
        self.phase: Callable[[str], AbstractContextManager[object]] = record_function

    def step(self, batches: Sequence[Batch], rate: float, *, seed: int) -> Step:
        """One step at this learning rate on the gradient of all batches; none where it is not finite. `seed`: of dropout."""
        tokens = sum(batch.num_tokens for batch in batches)
        torch.manual_seed(seed)
        self.model.train()
        loss = nll = torch.zeros((), device=self.device)
        for batch in batches:
            with self.phase("forward"):
                batch_loss, batch_nll = self.loss(batch)
            with self.phase("backward"):
                (batch_loss / tokens).backward()
            loss, nll = loss + batch_loss.detach(), nll + batch_nll
        with self.phase("optimizer"):
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip_norm or math.inf)
            if math.isfinite(norm):
                for optimizer in self.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    optimizer.step()
            self.model.zero_grad(set_to_none=True)
        return Step(tokens, loss / tokens, nll / tokens, norm, rate)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed loss of a batch and its plain negative log-likelihood, both summed over its real target tokens."""
        batch = batch.to(self.device)
        real, r_drop = batch.real, self.train.r_drop
        passes = 2 if r_drop and self.model.training else 1
        with autocast(self.device, self.precision):
            hidden = self._hidden(*(tensor.repeat(passes, 1) for tensor in (batch.source, batch.target_in, real)))
            return projected_cross_entropy(
                hidden, self.model.output.weight, batch.target_out[real], smoothing=self.train.label_smoothing, r_drop=r_drop)
