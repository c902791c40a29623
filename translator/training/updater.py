"""One update of a model: forward, backward, clipping, a step of the optimizers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from translator.config.options import OptimConfig, TrainConfig
from translator.data.batching import Batch
from translator.data.lexicon import Lexicon
from translator.model.positions import SinusoidalPositions
from translator.model.ssru import SSRU
from translator.model.transformer import Transformer
from translator.runtime.console import log
from translator.runtime.device import Precision, advise_when_out_of_memory
from translator.runtime.distributed import full_tensor, shard_module, sum_over_processes, world_size
from translator.runtime.seeds import seed_thread
from translator.text.tokenizer import PAD_ID
from translator.training.alignment import guidance, guided_head
from translator.training.cuda_graphs import Recordings, Work
from translator.training.loss import projected_cross_entropy
from translator.training.optimizers import build_optimizers, load_state_tensors, state_tensors
from translator.training.teacher import Teacher

T = TypeVar("T")

# Least target positions per CPU thread, and most threads: with less work, or more threads, they would wait for Python's lock.
# Measured with two.
LEAST_POSITIONS, MOST_THREADS = 2**9, 8
# On a GPU lengths are padded to a multiple of this, so that batches have few shapes to capture CUDA graphs of.
LENGTHS_TOGETHER = 4


@dataclass(frozen=True)
class Step:
    """Measurements of one update."""

    tokens: int  # real target tokens
    loss: float  # per token, smoothed
    nll: float  # per token
    gradient_norm: float  # before clipping
    learning_rate: float


class Updater:
    """Updates `model` on its device, with matrix products in `precision`. A single GPU replays CUDA graphs."""

    def __init__(self, model: Transformer, optim: OptimConfig, train: TrainConfig, *, precision: Precision,
                 lexicon: Lexicon | None = None, teacher: Teacher | None = None) -> None:
        """lexicon: of the training data, for guided alignment. teacher: on the model's device. None: there is no such loss."""
        self.optim, self.train, self.precision = optim, train, precision
        self.device = next(model.parameters()).device
        self.model = model  # the one that is trained: with FSDP a sharded copy
        lexicon = None if lexicon is None else lexicon.to(self.device)
        self._loss = _Loss(model, train, lexicon, teacher)
        self._parallel: nn.Module = self._loss
        if world_size() > 1 and train.parallel == "fsdp":
            self.model = copy.deepcopy(model)
            layers = [*self.model.encoder, *self.model.decoder]
            self._parallel = shard_module(_Loss(self.model, train, lexicon, teacher), layers, minutes=train.timeout_minutes)
        elif world_size() > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of the option's new name, which PyTorch 2.11 does not know
                self._parallel = DistributedDataParallel(self._loss, broadcast_buffers=False)
        if train.compile:
            for part in self.model.modules():
                if isinstance(part, SSRU):  # whose loop would be unrolled again for each length
                    part.forward = torch.compiler.disable(part.forward)  # type: ignore[method-assign]
            for layer in (*self.model.encoder, *self.model.decoder):  # layers of one kind share the compiled code
                layer.compile(dynamic=True)
            torch.compiler.set_stance("force_eager")  # only updates run compiled: a validation is too short to pay
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision is Precision.FP16)
        one_process = world_size() == 1 and not self.scaler.is_enabled()
        replay = train.cuda_graphs and self.device.type == "cuda" and one_process
        self._recordings = Recordings(self.device) if replay else None
        # PyTorch's dropout of attention weights takes random numbers that all threads share.
        threads = one_process and self.device.type == "cpu" and not train.compile and not model.config.attention_dropout
        self._threads = Threads(torch.get_num_threads() if threads else 1)
        self.optimizers = build_optimizers(self.model, optim, precision=precision, capturable=replay)
        models = (self.model, *(() if teacher is None else teacher.models))
        self._sinusoidal = [part for model in models for part in model.modules() if isinstance(part, SinusoidalPositions)]
        self._has_fit = False
        # Names the phases in a profile; a benchmark sets its own.
        self.phase: Callable[[str], AbstractContextManager[object]] = record_function

    def step(self, batches: Sequence[Batch], rate: float) -> Step:
        """Update with the summed gradient of all processes' batches, unless it is not finite. Raises OutOfMemory."""
        compiled = torch.compiler.set_stance("default") if self.train.compile else nullcontext()
        with advise_when_out_of_memory(self._advice(batches)), compiled:
            tokens = int(sum_over_processes(sum(batch.num_tokens for batch in batches))[0])
            self._parallel.train()
            loss, nll = self._gradients(batches, tokens)
            with self.phase("optimizer"):
                [norm] = self._run(self._clip_gradients)
                # The only wait for the device in an update: the optimizer's step runs while the next batches are made.
                *losses, gradient_norm = torch.stack([loss, nll, norm]).tolist()
                if math.isfinite(gradient_norm):
                    self._run(self._apply_gradients, torch.tensor(rate, dtype=torch.float64))
                self.scaler.update()
                self._zero_gradients()
            self._has_fit = True
            total_loss, total_nll = sum_over_processes(*losses)
            return Step(tokens, total_loss / tokens, total_nll / tokens, gradient_norm, rate)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the smoothed loss and the negative log-likelihood of a batch, summed over its real target tokens."""
        with advise_when_out_of_memory(self._advice([batch])), self.precision.autocast(self.device):
            return self._loss(*(x.to(self.device, non_blocking=True) for x in self._inputs(batch)))

    def state(self) -> dict[str, Tensor]:
        return state_tensors(self.optimizers)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        load_state_tensors(self.optimizers, tensors)
        if self._recordings is not None:
            self._recordings.forget()

    def _gradients(self, batches: Sequence[Batch], tokens: int) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of an update of this many tokens; return the summed losses.

        When memory runs out, CUDA graphs make room, and then batches are halved; in the first update they are too large.
        """
        try:
            return self._accumulate(batches, tokens)
        except torch.OutOfMemoryError:
            halves = [half for batch in batches for half in batch.parts(min(2, len(batch.source)))]
            may_halve = self._has_fit and world_size() == 1 and len(halves) > len(batches)
            if not (self._recordings or may_halve):
                raise
        self._zero_gradients()
        if self._recordings:
            self._recordings.give_up()
            return self._gradients(batches, tokens)
        log(f"warning: out of memory: this update is computed in {len(halves)} smaller batches")
        torch.cuda.empty_cache()
        return self._gradients(halves, tokens)

    def _accumulate(self, batches: Sequence[Batch], tokens: int) -> tuple[Tensor, Tensor]:
        loss = nll = torch.zeros((), device=self.device)
        scale = torch.tensor(world_size() / tokens)  # data parallelism averages gradients; their sum is wanted
        for number, batch in enumerate(batches, start=1):
            self._set_gradient_sync(number == len(batches))
            parts = self._threads.parts(batch, self.train.passes)
            if len(parts) > 1:
                batch_loss, batch_nll = self._add_gradients_by_threads(parts, scale)
            else:
                torch.manual_seed(parts[0].seed)
                if self._recordings is not None:  # a longer sentence makes new tables of positions
                    self._recordings.depend_on(tuple(module.table.data_ptr() for module in self._sinusoidal))
                with nullcontext() if self._recordings is None else self.phase("replay"):
                    batch_loss, batch_nll = self._run(self._add_gradients, *self._inputs(parts[0]), scale)
            loss, nll = loss + batch_loss, nll + batch_nll
        return loss, nll

    def _add_gradients(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return a batch's loss and likelihood, and add the gradients of the scaled loss to the weights'."""
        *of_batch, scale = (x.to(self.device, non_blocking=True) for x in inputs)
        with self.phase("forward"), self.precision.autocast(self.device):
            loss, nll = self._parallel(*of_batch)
        with self.phase("backward"):
            self.scaler.scale(loss * scale).backward()
        return loss.detach(), nll

    def _add_gradients_by_threads(self, parts: Sequence[Batch], scale: Tensor) -> tuple[Tensor, ...]:
        """Do what `_add_gradients` does, in a thread per part. The sums have a fixed order."""
        weights = list(self.model.parameters())

        def gradients_of(part: Batch) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
            with self.phase("forward"), self.precision.autocast(self.device):
                loss, nll = self._loss(*self._inputs(part))
            with self.phase("backward"):
                return loss.detach(), nll, torch.autograd.grad(loss * scale, weights, allow_unused=True)

        losses, nlls, gradients = zip(*self._threads.each(gradients_of, parts), strict=True)
        for weight, *of_parts in zip(weights, *gradients, strict=True):
            addends = [gradient for gradient in (weight.grad, *of_parts) if gradient is not None]
            weight.grad = reduce(Tensor.add_, addends) if addends else None
        return sum(losses), sum(nlls)

    def _set_gradient_sync(self, on: bool) -> None:
        if isinstance(self._parallel, DistributedDataParallel):
            self._parallel.require_backward_grad_sync = on
        elif world_size() > 1:
            from torch.distributed.fsdp import FSDPModule  # takes a second, which one process need not spend

            assert isinstance(self._parallel, FSDPModule)
            self._parallel.set_requires_gradient_sync(on)

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the arguments of `_Loss`, on the CPU."""
        if self.device.type != "cuda":
            return batch.source, batch.target_in, batch.target_out, batch.real
        return tuple(self._padded(ids) for ids in (batch.source, batch.target_in, batch.target_out))

    def _padded(self, ids: Tensor) -> Tensor:
        """Pad (B, T) to a multiple of `LENGTHS_TOGETHER`, within learned positions."""
        config, length = self.model.config, ids.size(1)
        missing = -length % LENGTHS_TOGETHER
        if config.positions == "learned":
            missing = max(0, min(missing, config.max_positions - length))
        return F.pad(ids, (0, missing), value=PAD_ID)

    def _clip_gradients(self) -> tuple[Tensor, ...]:
        """Clip the gradients to `optim.clip_norm`; return their norm before."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        return (full_tensor(nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip_norm or math.inf)),)

    def _apply_gradients(self, rate: Tensor) -> tuple[Tensor, ...]:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate.float() if rate.is_cuda else rate.item()
            self.scaler.step(optimizer)
        return ()

    def _zero_gradients(self) -> None:
        if self._recordings is None:
            self.model.zero_grad()
        else:  # CUDA graphs need them at the same addresses
            torch._foreach_zero_([weight.grad for weight in self.model.parameters() if weight.grad is not None])

    def _run(self, work: Work, *inputs: Tensor) -> tuple[Tensor, ...]:
        return work(*inputs) if self._recordings is None else self._recordings.do(work, *inputs)

    def _advice(self, batches: Sequence[Batch]) -> str:
        cells = max(batch.target_out.numel() for batch in batches)
        source, target = max(batch.source.size(1) for batch in batches), max(batch.target_out.size(1) for batch in batches)
        return (f"a batch has {cells:,} target tokens, its longest sentences {source:,} and {target:,}; lower "
                f"train.batch_tokens={self.train.batch_tokens}, and raise train.accumulation to keep an update's size")


class _Loss(nn.Module):
    """A batch's loss as the forward pass of one module, which data parallelism wraps."""

    def __init__(self, model: Transformer, train: TrainConfig, lexicon: Lexicon | None, teacher: Teacher | None) -> None:
        super().__init__()
        self.model, self.config, self.lexicon = model, train, lexicon
        self.teacher = teacher  # no module: neither sharded nor trained
        self.guided = guided_head(model.config.decoder_layers)

    def forward(self, source: Tensor, target_in: Tensor, target_out: Tensor,
                real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return loss and likelihood, summed. real (B, T): the tokens to project; None: all, as counting waits for the GPU."""
        training = self.model.training
        passes, encodings = (self.config.passes, self.config.encodings) if training else (1, 1)
        lexicon, teacher = (self.lexicon, self.teacher) if training else (None, None)
        hidden, weights = self.model.hidden_and_weights(
            source.repeat(encodings, 1), target_in.repeat(passes, 1), None if real is None else real.repeat(passes, 1),
            weights_of=() if lexicon is None else self.guided.layers)
        targets = target_out.flatten() if real is None else target_out[real]
        loss, nll = projected_cross_entropy(
            hidden, self.model.output.weight, targets, real=targets != PAD_ID if real is None else None, passes=passes,
            bias=self.model.output.bias, smoothing=self.config.label_smoothing, r_drop=self.config.r_drop,
            distillation=self.config.distillation,
            teachers=() if teacher is None else teacher.projections(source, target_in, real),
            sample=self.config.sampled_softmax if training else 0)
        if lexicon is not None:
            links = lexicon.agreement(source, target_out).repeat(passes, 1, 1)
            loss = loss + self.config.guided_alignment / passes * guidance(self.guided.mean(weights), links)
        if self.config.span_penalty and training:
            spans = torch.cat([span for side in self.model.spans().values() for span in side])
            loss = loss + self.config.span_penalty * spans.mean() * (targets != PAD_ID).sum()
        return loss, nll



class Threads:
    """Data parallelism between CPU threads, which synchronise once a batch: PyTorch's own do at every operation."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "part of a batch")

    def parts(self, batch: Batch, passes: int) -> list[Batch]:
        """Split a batch that is read `passes` times into a part per thread, or into one where that would not pay."""
        enough = passes * batch.target_out.numel() >= self.count * LEAST_POSITIONS and len(batch.source) >= self.count
        return batch.parts(self.count) if enough and 1 < self.count <= MOST_THREADS else [batch]

    def each(self, work: Callable[[Batch], T], parts: Sequence[Batch]) -> list[T]:
        """Return `work` of each part, in order; random numbers follow from the part's seed."""
        def single_threaded(part: Batch) -> T:
            torch.set_num_threads(1)
            seed_thread(part.seed)
            return work(part)

        try:
            return list(self._pool.map(single_threaded, parts))
        finally:
            torch.set_num_threads(self.count)  # new threads get the number set last
