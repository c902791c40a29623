"""One update of a model: loss and gradient of its batches, clipping, a step of the optimizers (floor 4)."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from translator.batching import Batch
from translator.config import OptimConfig, TrainConfig
from translator.device import autocast
from translator.distributed import shard, size, totals, whole
from translator.loss import projected_cross_entropy
from translator.memory import telling_of_memory
from translator.model import Transformer
from translator.optim import build_optimizers


@dataclass(frozen=True)
class Step:
    """What one step of the optimizers measured."""

    tokens: int  # real target tokens
    loss: float  # a token, smoothed
    nll: float  # a token
    gradient_norm: float  # before clipping
    learning_rate: float


class Updater:
    """Updates `model`, where it lies, with matrix products in `precision`."""

    def __init__(self, model: Transformer, optim: OptimConfig, train: TrainConfig, *, precision: torch.dtype) -> None:
        self.optim = optim
        self.train = train
        self.precision = precision
        self.device = next(model.parameters()).device
        self.model = model  # that is trained
        self._loss = _Loss(model, train)
        self._parallel: nn.Module = self._loss  # the same, with several processes
        if size() > 1 and train.parallel == "fsdp":
            self.model = copy.deepcopy(model)
            layers = [*self.model.encoder, *self.model.decoder]
            self._parallel = shard(_Loss(self.model, train), layers, minutes=train.timeout_minutes)
        elif size() > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of the option's new name, which PyTorch 2.11 does not know
                self._parallel = DistributedDataParallel(self._loss, broadcast_buffers=False)
        if train.compile:
            for layer in (*self.model.encoder, *self.model.decoder):  # of one kind they share what one of them took to compile
                layer.compile(dynamic=True)
            # From now on nothing in this process runs compiled but updates: for a validation it is not worth while.
            torch.compiler.set_stance("force_eager")
        self.optimizers = build_optimizers(self.model, optim, precision=precision)
        # Small gradients would vanish in fp16: the loss is scaled up, by as much as leaves the largest ones finite.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == torch.float16)
        # What profiles show by name; a benchmark puts its own here.
        self.phase: Callable[[str], AbstractContextManager[object]] = record_function

    def step(self, batches: Sequence[Batch], rate: float) -> Step:
        """One step at this learning rate on the gradient of all batches; none where it is not finite.

        Of several processes each brings its own batches, equally many. Raises OutOfMemory, with what to lower.
        """
        compiled = torch.compiler.set_stance("default") if self.train.compile else nullcontext()
        with telling_of_memory(self._advice(batches)), compiled:
            return self._step(batches, rate)

    def _step(self, batches: Sequence[Batch], rate: float) -> Step:
        tokens = int(totals(sum(batch.num_tokens for batch in batches))[0])
        self._parallel.train()
        loss = nll = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            self._meet_after(last=number == len(batches))
            torch.manual_seed(batch.seed)
            with self.phase("forward"):
                batch_loss, batch_nll = self._of(self._parallel, batch)
            with self.phase("backward"):
                # The processes' gradients are averaged; it is their sum that is wanted.
                self.scaler.scale(batch_loss * (size() / tokens)).backward()
            loss, nll = loss + batch_loss.detach(), nll + batch_nll
        with self.phase("optimizer"):
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip_norm or math.inf))
            # An update's only wait for the device; what it does next it does while the next batches are made.
            *losses, gradient_norm = torch.stack([loss, nll, norm]).tolist()
            if math.isfinite(gradient_norm):
                for optimizer in self.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    self.scaler.step(optimizer)
            self.scaler.update()
            self.model.zero_grad(set_to_none=True)
        total_loss, total_nll = totals(*losses)
        return Step(tokens, total_loss / tokens, total_nll / tokens, gradient_norm, rate)

    def _advice(self, batches: Sequence[Batch]) -> str:
        cells = max(batch.target_out.numel() for batch in batches)
        source, target = max(batch.source.size(1) for batch in batches), max(batch.target_out.size(1) for batch in batches)
        return (f"a batch has {cells:,} target tokens, its longest sentences {source:,} and {target:,}; lower "
                f"train.batch_tokens={self.train.batch_tokens}, and raise train.accumulation to keep an update's size")

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed loss of a batch and its plain negative log-likelihood, both summed over its real target tokens.

        By the caller's model, whole in this process. Raises OutOfMemory, with what to lower.
        """
        with telling_of_memory(self._advice([batch])):
            return self._of(self._loss, batch)

    def _of(self, loss: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        # Numbers, found on the CPU: to count what a mask picks would wait for a GPU.
        real = batch.real.flatten().nonzero()[:, 0].to(self.device, non_blocking=True)
        batch = batch.to(self.device)
        with autocast(self.device, self.precision):
            return loss(batch.source, batch.target_in, batch.target_out, real)

    def _meet_after(self, *, last: bool) -> None:
        """Gradients meet those of the other processes after the last batch of an update alone."""
        if isinstance(self._parallel, DistributedDataParallel):
            self._parallel.require_backward_grad_sync = last
        elif size() > 1:
            from torch.distributed.fsdp import FSDPModule  # takes a second, which one process alone need not spend

            assert isinstance(self._parallel, FSDPModule)
            self._parallel.set_requires_gradient_sync(last)


class _Loss(nn.Module):
    """A batch's loss as the forward pass of one module, which is what data parallelism wraps."""

    def __init__(self, model: Transformer, train: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self.train_config = train

    def forward(self, source: Tensor, target_in: Tensor, target_out: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        passes = self.train_config.passes if self.model.training else 1
        hidden = self.model.hidden(
            source.repeat(passes, 1), target_in.repeat(passes, 1),
            torch.cat([real + number * target_in.numel() for number in range(passes)]))
        return projected_cross_entropy(
            hidden, self.model.output.weight, target_out.flatten()[real], passes=passes, bias=self.model.output.bias,
            smoothing=self.train_config.label_smoothing, r_drop=self.train_config.r_drop)
