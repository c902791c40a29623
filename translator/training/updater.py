"""One update of a model: loss and gradient of its batches, clipping, a step of the optimizers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from translator.config.options import OptimConfig, TrainConfig
from translator.data.batching import Batch
from translator.model.positions import SinusoidalPositions
from translator.model.transformer import Transformer
from translator.runtime.device import Precision
from translator.runtime.distributed import full_tensor, shard_module, sum_over_processes, world_size
from translator.runtime.memory import advise_when_out_of_memory
from translator.text.tokenizer import PAD_ID
from translator.training.cuda_graphs import Recordings, Work
from translator.training.loss import projected_cross_entropy
from translator.training.optimizers import build_optimizers, load_state_tensors, state_tensors
from translator.training.thread_parallel import Threads

# On a GPU lengths are padded to a multiple of this: batches are of few shapes then, which `Recordings` live on.
LENGTHS_TOGETHER = 4


@dataclass(frozen=True)
class Step:
    """What one step of the optimizers measured."""

    tokens: int  # real target tokens
    loss: float  # a token, smoothed
    nll: float  # a token
    gradient_norm: float  # before clipping
    learning_rate: float


class Updater:
    """Updates `model`, where it lies, with matrix products in `precision`. One GPU replays what it has once been asked for."""

    def __init__(self, model: Transformer, optim: OptimConfig, train: TrainConfig, *, precision: Precision) -> None:
        self.optim = optim
        self.train = train
        self.precision = precision
        self.device = next(model.parameters()).device
        self.model = model  # that is trained
        self._loss = _Loss(model, train)
        self._parallel: nn.Module = self._loss  # the same, with several processes
        if world_size() > 1 and train.parallel == "fsdp":
            self.model = copy.deepcopy(model)
            layers = [*self.model.encoder, *self.model.decoder]
            self._parallel = shard_module(_Loss(self.model, train), layers, minutes=train.timeout_minutes)
        elif world_size() > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of the option's new name, which PyTorch 2.11 does not know
                self._parallel = DistributedDataParallel(self._loss, broadcast_buffers=False)
        if train.compile:
            for layer in (*self.model.encoder, *self.model.decoder):  # of one kind they share what one of them took to compile
                layer.compile(dynamic=True)
            # From now on nothing in this process runs compiled but updates: for a validation it is not worth while.
            torch.compiler.set_stance("force_eager")
        # Small gradients would vanish in fp16: the loss is scaled up, by as much as leaves the largest ones finite.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision is Precision.FP16)
        replay = train.cuda_graphs and self.device.type == "cuda" and world_size() == 1 and not self.scaler.is_enabled()
        self._recordings = Recordings(self.device) if replay else None
        # Threads do not scale the loss. Attention's dropout may be PyTorch's, whose random numbers all threads share.
        apart = self.device.type == "cpu" and world_size() == 1 and not self.scaler.is_enabled() and not train.compile
        self._threads = Threads(torch.get_num_threads() if apart and not model.config.attention_dropout else 1)
        self.optimizers = build_optimizers(self.model, optim, precision=precision, capturable=replay)
        self._sinusoidal = [module for module in self.model.modules() if isinstance(module, SinusoidalPositions)]
        # What profiles show by name; a benchmark puts its own here.
        self.phase: Callable[[str], AbstractContextManager[object]] = record_function

    def step(self, batches: Sequence[Batch], rate: float) -> Step:
        """One step at this learning rate on the gradient of all batches; none where it is not finite.

        Of several processes each brings its own batches, equally many. Raises OutOfMemory, with what to lower.
        """
        compiled = torch.compiler.set_stance("default") if self.train.compile else nullcontext()
        with advise_when_out_of_memory(self._advice(batches)), compiled:
            return self._step(batches, rate)

    def _step(self, batches: Sequence[Batch], rate: float) -> Step:
        tokens = int(sum_over_processes(sum(batch.num_tokens for batch in batches))[0])
        self._parallel.train()
        loss, nll = self._gradients(batches, tokens)
        with self.phase("optimizer"):
            [norm] = self._do(self._clip_gradients)
            # An update's only wait for the device; what it does next it does while the next batches are made.
            *losses, gradient_norm = torch.stack([loss, nll, norm]).tolist()
            if math.isfinite(gradient_norm):
                self._do(self._apply_gradients, torch.tensor(rate, dtype=torch.float64))
            self.scaler.update()
            self._forget_gradients()
        total_loss, total_nll = sum_over_processes(*losses)
        return Step(tokens, total_loss / tokens, total_nll / tokens, gradient_norm, rate)

    def _gradients(self, batches: Sequence[Batch], tokens: int) -> tuple[Tensor, Tensor]:
        """Leave the weights the gradients of all batches of an update of so many tokens; the batches' losses, summed."""
        try:
            return self._accumulated(batches, tokens)
        except torch.OutOfMemoryError:
            if not self._recordings:
                raise
        self._recordings.give_up()
        self._forget_gradients()
        return self._accumulated(batches, tokens)

    def _accumulated(self, batches: Sequence[Batch], tokens: int) -> tuple[Tensor, Tensor]:
        loss = nll = torch.zeros((), device=self.device)
        # The processes' gradients are averaged; it is their sum that is wanted.
        share = torch.tensor(world_size() / tokens)
        for number, batch in enumerate(batches, start=1):
            self._meet_after(last=number == len(batches))
            parts = self.parts(batch)
            add = self._add_gradients_by_threads if len(parts) > 1 else self._add_gradients_at_once
            batch_loss, batch_nll = add(parts, share)
            loss, nll = loss + batch_loss, nll + batch_nll
        return loss, nll

    def parts(self, batch: Batch) -> list[Batch]:
        """The parts of a batch whose gradients are made apart, each with a sample of its own where the softmax is sampled."""
        return self._threads.parts(batch, self.train.passes)

    def _add_gradients_at_once(self, parts: Sequence[Batch], share: Tensor) -> tuple[Tensor, ...]:
        """What `_add_gradients` does, replayed where updates are, of a batch that is in one part."""
        [batch] = parts
        torch.manual_seed(batch.seed)
        if self._recordings is not None:
            self._recordings.depend_on(self._tables())
        with nullcontext() if self._recordings is None else self.phase("replay"):
            return self._do(self._add_gradients, *self._inputs(batch), share)

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `_Loss` is given of a batch, still on the CPU."""
        if self.device.type != "cuda":
            return batch.source, batch.target_in, batch.target_out, batch.real
        # Few shapes are worth more there than padding that takes no work.
        return tuple(self._lengthened(ids) for ids in (batch.source, batch.target_in, batch.target_out))

    def _lengthened(self, ids: Tensor) -> Tensor:
        """(B, T) padded to a multiple of `LENGTHS_TOGETHER`, as far as learned positions reach."""
        config, length = self.model.config, ids.size(1)
        missing = -length % LENGTHS_TOGETHER
        if config.positions == "learned":
            missing = max(0, min(missing, config.max_positions - length))
        return F.pad(ids, (0, missing), value=PAD_ID)

    def _do(self, work: Work, *inputs: Tensor) -> tuple[Tensor, ...]:
        return work(*inputs) if self._recordings is None else self._recordings.do(work, *inputs)

    def _tables(self) -> tuple[int, ...]:
        """Where tables of positions lie, which lie elsewhere once a longer sentence has come."""
        return tuple(module.table.data_ptr() for module in self._sinusoidal)

    def _add_gradients(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """A batch's loss and likelihood as `loss` has them. Adds to the weights' gradients, of the loss times the share."""
        *of_batch, share = (x.to(self.device, non_blocking=True) for x in inputs)
        with self.phase("forward"), self.precision.autocast(self.device):
            loss, nll = self._parallel(*of_batch)
        with self.phase("backward"):
            self.scaler.scale(loss * share).backward()
        return loss.detach(), nll

    def _add_gradients_by_threads(self, parts: Sequence[Batch], share: Tensor) -> tuple[Tensor, ...]:
        """What `_add_gradients` does, by a thread for each part of a batch. The same parts give the same to the bit."""
        weights = list(self.model.parameters())

        def of_part(part: Batch) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
            with self.phase("forward"), self.precision.autocast(self.device):
                loss, nll = self._loss(*self._inputs(part))
            with self.phase("backward"):
                return loss.detach(), nll, torch.autograd.grad(loss * share, weights, allow_unused=True)

        losses, nlls, of_parts = zip(*self._threads.each(of_part, parts), strict=True)
        for weight, *gradients in zip(weights, *of_parts, strict=True):
            addends = [gradient for gradient in (weight.grad, *gradients) if gradient is not None]
            weight.grad = reduce(Tensor.add_, addends) if addends else None
        return sum(losses), sum(nlls)

    def _clip_gradients(self) -> tuple[Tensor, ...]:
        """The norm of the gradients, which are shortened where it is above `optim.clip_norm`."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        return (full_tensor(nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip_norm or math.inf)),)

    def _apply_gradients(self, rate: Tensor) -> tuple[Tensor, ...]:
        """A step of the optimizers at a learning rate, which is read where it lies on a GPU."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate.float() if rate.is_cuda else rate.item()
            self.scaler.step(optimizer)
        return ()

    def _forget_gradients(self) -> None:
        """Where updates are replayed they stay where they are, as zeros."""
        if self._recordings is None:
            self.model.zero_grad()
        else:
            torch._foreach_zero_([weight.grad for weight in self.model.parameters() if weight.grad is not None])

    def state(self) -> dict[str, Tensor]:
        """All that the optimizers remember, by name."""
        return state_tensors(self.optimizers)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Give them back what `state` took from their like."""
        load_state_tensors(self.optimizers, tensors)
        if self._recordings is not None:
            self._recordings.forget()

    def _advice(self, batches: Sequence[Batch]) -> str:
        cells = max(batch.target_out.numel() for batch in batches)
        source, target = max(batch.source.size(1) for batch in batches), max(batch.target_out.size(1) for batch in batches)
        return (f"a batch has {cells:,} target tokens, its longest sentences {source:,} and {target:,}; lower "
                f"train.batch_tokens={self.train.batch_tokens}, and raise train.accumulation to keep an update's size")

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed loss of a batch and its plain negative log-likelihood, both summed over its real target tokens.

        By the caller's model, whole in this process. Raises OutOfMemory, with what to lower.
        """
        with advise_when_out_of_memory(self._advice([batch])), self.precision.autocast(self.device):
            return self._loss(*(x.to(self.device, non_blocking=True) for x in self._inputs(batch)))

    def _meet_after(self, *, last: bool) -> None:
        """Gradients meet those of the other processes after the last batch of an update alone."""
        if isinstance(self._parallel, DistributedDataParallel):
            self._parallel.require_backward_grad_sync = last
        elif world_size() > 1:
            from torch.distributed.fsdp import FSDPModule  # takes a second, which one process alone need not spend

            assert isinstance(self._parallel, FSDPModule)
            self._parallel.set_requires_gradient_sync(last)


class _Loss(nn.Module):
    """A batch's loss as the forward pass of one module, which is what data parallelism wraps."""

    def __init__(self, model: Transformer, train: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self.train_config = train

    def forward(
        self, source: Tensor, target_in: Tensor, target_out: Tensor, real: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """source (B, S), target_in and target_out (B, T) -> loss and likelihood, summed over real tokens.

        real (B, T): which these are, so that no work is made of padding. Without it as many positions are gone through as there
        are, of which a GPU need not be asked how many count.
        """
        passes, encodings = (self.train_config.passes, self.train_config.encodings) if self.model.training else (1, 1)
        hidden = self.model.hidden(
            source.repeat(encodings, 1), target_in.repeat(passes, 1), None if real is None else real.repeat(passes, 1))
        targets = target_out.flatten() if real is None else target_out[real]
        return projected_cross_entropy(
            hidden, self.model.output.weight, targets,
            real=targets != PAD_ID if real is None else None, passes=passes, bias=self.model.output.bias,
            smoothing=self.train_config.label_smoothing, r_drop=self.train_config.r_drop,
            sample=self.train_config.sampled_softmax if self.model.training else 0)
