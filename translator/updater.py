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
from translator.device import autocast, telling_of_memory
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
        # Small gradients would vanish in fp16: the loss is scaled up, by as much as leaves the largest ones finite.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == torch.float16)
        self._hidden = torch.compile(model.hidden, dynamic=True) if train.compile else model.hidden
        # What profiles show by name; a benchmark puts its own here.
        self.phase: Callable[[str], AbstractContextManager[object]] = record_function

    def step(self, batches: Sequence[Batch], rate: float, *, seed: int) -> Step:
        """One step at this learning rate on the gradient of all batches; none where it is not finite. `seed`: of dropout.

        Raises OutOfMemory, with what to lower.
        """
        with telling_of_memory(self._advice(batches)):
            return self._step(batches, rate, seed)

    def _step(self, batches: Sequence[Batch], rate: float, seed: int) -> Step:
        tokens = sum(batch.num_tokens for batch in batches)
        torch.manual_seed(seed)
        self.model.train()
        loss = nll = torch.zeros((), device=self.device)
        for batch in batches:
            with self.phase("forward"):
                batch_loss, batch_nll = self.loss(batch)
            with self.phase("backward"):
                self.scaler.scale(batch_loss / tokens).backward()
            loss, nll = loss + batch_loss.detach(), nll + batch_nll
        with self.phase("optimizer"):
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip_norm or math.inf)
            if math.isfinite(norm):
                for optimizer in self.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    self.scaler.step(optimizer)
            self.scaler.update()
            self.model.zero_grad(set_to_none=True)
        return Step(tokens, loss / tokens, nll / tokens, norm, rate)

    def _advice(self, batches: Sequence[Batch]) -> str:
        cells = max(batch.target_out.numel() for batch in batches)
        source, target = (max(ids.size(1) for ids in side) for side in zip(
            *((batch.source, batch.target_out) for batch in batches), strict=True))
        return (f"a batch has {cells:,} target tokens, its longest sentences {source:,} and {target:,}; lower "
                f"train.batch_tokens={self.train.batch_tokens}, and raise train.accumulation to keep an update's size")

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed loss of a batch and its plain negative log-likelihood, both summed over its real target tokens."""
        batch = batch.to(self.device)
        real, r_drop = batch.real, self.train.r_drop
        passes = 2 if r_drop and self.model.training else 1
        with autocast(self.device, self.precision):
            hidden = self._hidden(*(tensor.repeat(passes, 1) for tensor in (batch.source, batch.target_in, real)))
            return projected_cross_entropy(
                hidden, self.model.output.weight, batch.target_out[real], smoothing=self.train.label_smoothing, r_drop=r_drop)
