"""The training loop: update, validate, stop, save, resume (floor 7).

It knows nothing of search: validation translates through a function it is given.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from translator.attention import padding_mask
from translator.batching import Batch, BatchSource, collate
from translator.checkpoint import RunFolder, Weights, load_into, save_tensors, weights_of
from translator.config import RunConfig
from translator.data import Corpus
from translator.device import autocast, phase
from translator.errors import UserError
from translator.loss import projected_cross_entropy
from translator.metrics import better, score
from translator.model import Transformer
from translator.optim import WeightAverage, build_optimizers, learning_rate
from translator.randomness import derive_seed
from translator.tokenizer import PAD_ID
from translator.tracking import Progress, Tracker, say

# Checkpoints kept whole: if the newest turns out damaged, the one before still serves.
RESUMABLE_CHECKPOINTS = 2
SAMPLE_TRANSLATIONS = 5
# What a derived seed is for.
DROPOUT = 1

Translate = Callable[[Sequence[str]], list[str]]
Metrics = dict[str, float]


class Interrupted(Exception):
    """SIGINT or SIGTERM came; everything up to here is saved."""


@dataclass
class TrainingState:
    """Where a training stands; with weights and optimizer, all it takes to go on."""

    update: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    tokens: int = 0
    seconds: float = 0.0
    validations: list[dict[str, Any]] = field(default_factory=list)  # {"update": int, metric: value, ...}


@dataclass(frozen=True)
class Outcome:
    """What a training ended with."""

    update: int
    kept: str  # which weights, in words
    metrics: Metrics  # theirs, on the validation split
    reason: str  # why training stopped


@dataclass(frozen=True)
class Step:
    """What one step of the optimizer measured."""

    tokens: int  # real target tokens
    loss: Tensor  # a token, smoothed
    nll: Tensor  # a token
    gradient_norm: Tensor  # before clipping
    learning_rate: float


class Trainer:
    """Train `model` on a corpus in a run folder, from its newest checkpoint where there is one."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        corpus: Corpus,
        model: Transformer,
        translate: Translate,
        *,
        precision: torch.dtype,
    ) -> None:
        """`translate`: source sentences to translations, by `model` as it stands. `model` is on its device already."""
        self.config = config
        self.folder = folder
        self.corpus = corpus
        self.model = model
        self.translate = translate
        self.precision = precision
        self.device = next(model.parameters()).device
        self.optimizers = build_optimizers(model, config.optim)
        self.average = WeightAverage(model, config.optim.ema_decay) if config.optim.ema_decay else None
        tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
        self.batches = BatchSource(
            corpus.train, tokenizers, max_tokens=config.train.batch_tokens, seed=config.seed,
            sampling=config.tokenizer.sampling)
        self.validation = BatchSource(corpus.validation, tokenizers, max_tokens=config.train.batch_tokens, seed=0)
        self.state = TrainingState()
        self._resume()
        self._epoch = self.batches.batches(self.state.epoch, self.state.batch)
        self._hidden = torch.compile(model.hidden, dynamic=True) if config.train.compile else model.hidden
        self._interrupted = False
        self._in_update = False

    # The plan

    def time_update(self) -> float:
        """Seconds that the largest update takes; memory that suffices here suffices to the end."""
        batch = self.batches.largest()
        seconds = 0.0
        for _ in range(2):  # the first one pays for set-up
            start = time.perf_counter()
            loss, _ = self._loss(batch)
            loss.backward()
            float(loss.detach())  # reading a number waits for the device
            seconds = time.perf_counter() - start
        self.model.zero_grad(set_to_none=True)
        return seconds * self.config.train.accumulation

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(len(self.batches.plan(0)) / self.config.train.accumulation)

    # The loop

    def fit(self) -> Outcome:
        """Train to the first limit and leave the chosen weights in the run folder.

        Raises Interrupted, with everything saved, on SIGINT or SIGTERM; a second signal ends the process at once.
        """
        self._tracker = Tracker(self.folder.metrics_file, self.folder.tensorboard, update=self.state.update)
        self._progress = Progress(1.0, unit="", done=self._fraction())
        self._started = time.monotonic() - self.state.seconds
        try:
            with self._catching_signals():
                while True:
                    if self._validation_due():  # first: a run stopped before its validation takes it up here
                        self._validate()
                    if reason := self._stop_reason():
                        return self._finish(reason)
                    self._update()
        except Interrupted:
            self._save()
            raise
        finally:
            self._progress.close()
            self._tracker.close()

    def _update(self) -> None:
        """The next batches, one step of the optimizer, and the books."""
        self._in_update = True
        started = time.perf_counter()
        config, state = self.config, self.state
        batches = self._next_batches()
        state.update += 1
        step = self.step(batches, learning_rate(config.optim, state.update, self._fraction()))
        if not math.isfinite(step.gradient_norm):
            raise UserError(
                f"update {state.update}: the gradient is {float(step.gradient_norm)}, so training stopped; its last good "
                f"checkpoint is in {self.folder.checkpoints}; try a lower optim.lr or a longer optim.warmup_updates")
        if self.average is not None:
            self.average.update(self.model, state.update)
        state.tokens += step.tokens
        state.seconds = time.monotonic() - self._started
        if state.update % config.train.log_every == 0:
            self._log(step, batches, step.tokens / (time.perf_counter() - started))
        self._in_update = False
        if self._interrupted:
            raise Interrupted

    def step(self, batches: Sequence[Batch], rate: float) -> Step:
        """One step of the optimizers at this learning rate on the gradient of all batches; none where it is not finite."""
        tokens = sum(batch.num_tokens for batch in batches)
        torch.manual_seed(derive_seed(self.config.seed, DROPOUT, self.state.update))
        self.model.train()
        loss = nll = torch.zeros((), device=self.device)
        for batch in batches:
            with phase("forward", self.device):
                batch_loss, batch_nll = self._loss(batch)
            with phase("backward", self.device):
                (batch_loss / tokens).backward()
            loss, nll = loss + batch_loss.detach(), nll + batch_nll
        with phase("optimizer", self.device):
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip_norm or math.inf)
            if math.isfinite(norm):
                for optimizer in self.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    optimizer.step()
            self.model.zero_grad(set_to_none=True)
        return Step(tokens, loss / tokens, nll / tokens, norm, rate)

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed loss of a batch and its plain negative log-likelihood, both summed over its real target tokens."""
        batch = batch.to(self.device)
        real = batch.real
        with autocast(self.device, self.precision):
            hidden = self._hidden(batch.source, batch.target_in, real)
            return projected_cross_entropy(
                hidden, self.model.output.weight, batch.target_out[real], smoothing=self.config.train.label_smoothing)

    def _next_batches(self) -> list[Batch]:
        """The batches of the next update: at an epoch's end perhaps fewer than train.accumulation."""
        batches = list(islice(self._epoch, self.config.train.accumulation))
        if not batches:
            self.state.epoch, self.state.batch = self.state.epoch + 1, 0
            self._epoch = self.batches.batches(self.state.epoch)
            return self._next_batches()
        self.state.batch += len(batches)
        return batches

    # When to stop

    def _epochs(self) -> float:
        return self.state.epoch + self.state.batch / len(self.batches.plan(self.state.epoch))

    def _fraction(self) -> float:
        """How much of the training is done, by the limit that is nearest: 0 to 1."""
        train, state = self.config.train, self.state
        done = [
            value / limit
            for value, limit in (
                (self._epochs(), train.max_epochs), (state.update, train.max_updates),
                (state.seconds / 60, train.max_minutes))
            if limit is not None
        ]
        return min(1.0, max(done))

    def _out_of_budget(self) -> bool:
        return self._fraction() >= 1

    def _stop_reason(self) -> str:
        """Why training is over; empty while it is not."""
        if self._out_of_budget():
            return "the limit set in train.max_epochs, train.max_updates or train.max_minutes"
        patience = self.config.train.patience
        if patience is not None and self.state.validations:
            stale = sum(v["update"] > self._ranked()[0]["update"] for v in self.state.validations)
            if stale >= patience:
                return f"no better {self.config.train.metric} in {patience} validations"
        return ""

    def _validation_due(self) -> bool:
        update = self.state.update
        if any(v["update"] == update for v in self.state.validations):
            return False
        return self._out_of_budget() or (update > 0 and update % self.config.train.validate_every == 0)

    def _ranked(self) -> list[dict[str, Any]]:
        """The validations, best first; of equals that of lower loss."""
        metric = self.config.train.metric
        sign = 1 if better(metric, 0, 1) else -1
        return sorted(self.state.validations, key=lambda v: (sign * v[metric], v["loss"]))

    # Validation and the choice of weights

    def _validate(self) -> None:
        """Measure the weights as they stand, save a checkpoint, and the model if it is the best so far."""
        with self._averaged_weights():
            metrics, translations = self._measure()
            self._show(metrics, translations)
            weights = weights_of(self.model)
            self.state.validations.append({"update": self.state.update, **metrics})
            if self._ranked()[0]["update"] == self.state.update:
                save_tensors(self.folder.model_file, weights)
        self._save()

    @torch.no_grad()
    def _measure(self) -> tuple[Metrics, list[str]]:
        """Loss, perplexity and translation scores of the validation split, and the translations."""
        self.model.eval()
        loss, nll, tokens = 0.0, 0.0, 0
        for batch in self.validation.batches(0):
            batch_loss, batch_nll = self._loss(batch)
            loss, nll, tokens = loss + float(batch_loss), nll + float(batch_nll), tokens + batch.num_tokens
        translations = self.translate(self.corpus.validation["source"])
        scores = score(translations, list(self.corpus.validation["target"]))
        metrics = {"loss": loss / tokens, "perplexity": math.exp(min(nll / tokens, 700))}
        return metrics | {name: value.value for name, value in scores.items()}, translations

    def _show(self, metrics: Metrics, translations: Sequence[str]) -> None:
        """Report a validation on the console and in TensorBoard, with samples and an attention map."""
        update = self.state.update
        say(f"update {update:,}: validation BLEU {metrics['bleu']:.2f}  chrF {metrics['chrf']:.2f}  "
            f"loss {metrics['loss']:.3f}  perplexity {metrics['perplexity']:.2f}")
        self._tracker.scalars(update, {f"validation/{name}": value for name, value in metrics.items()})
        samples = self.corpus.validation[:SAMPLE_TRANSLATIONS]
        rows = [("source", "translation", "reference"), ("---",) * 3]
        rows += zip(samples["source"], translations, samples["target"], strict=False)
        self._tracker.text(update, "validation/samples", "\n".join(f"| {' | '.join(row)} |" for row in rows))
        self._tracker.attention_map(update, "validation/attention", *self._attention_of_first())

    @torch.no_grad()
    def _attention_of_first(self) -> tuple[Tensor, list[str], list[str]]:
        """The last layer's cross-attention (H, T, S) for the first validation pair, and both sides' pieces."""
        pair = self.corpus.validation[0]
        batch = collate([pair["source_ids"]], [pair["target_ids"]]).to(self.device)
        mask = padding_mask(batch.source, PAD_ID)
        _, weights = self.model.decode(batch.target_in, self.model.encode(batch.source), mask, need_weights=True)
        return (weights[-1][0], self.corpus.source_tokenizer.pieces(pair["source_ids"]),
                self.corpus.target_tokenizer.pieces(pair["target_ids"]))

    def _finish(self, reason: str) -> Outcome:
        """Leave the better of the best checkpoint and the average of several as the run's model."""
        outcome = self.folder.load_outcome()
        if outcome is not None and outcome["update"] == self.state.update:
            return Outcome(**outcome)
        best = self._ranked()[0]
        kept, metrics = f"checkpoint of update {best['update']:,}", {k: v for k, v in best.items() if k != "update"}
        updates = self._averaged_updates()
        if len(updates) > 1:
            load_into(self.model, self.folder.average(updates), self.folder.checkpoints)
            averaged, _ = self._measure()
            if better(self.config.train.metric, averaged[self.config.train.metric], metrics[self.config.train.metric]):
                kept, metrics = f"average of updates {', '.join(f'{u:,}' for u in sorted(updates))}", averaged
                save_tensors(self.folder.model_file, weights_of(self.model))
        chosen = Outcome(self.state.update, kept, metrics, reason)
        self.folder.save_outcome(asdict(chosen))
        return chosen

    def _averaged_updates(self) -> list[int]:
        """The updates whose weights `train.average` asks to average."""
        train = self.config.train
        if train.average == "none":
            return []
        ordered = self._ranked() if train.average == "best" else self.state.validations[::-1]
        return [v["update"] for v in ordered[: train.average_count]]

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Inside, the model has the moving average of its weights, where one is kept."""
        if self.average is None:
            yield
            return
        own = {name: weight.clone() for name, weight in weights_of(self.model).items()}
        load_into(self.model, self.average.weights, self.folder.path)
        try:
            yield
        finally:
            load_into(self.model, own, self.folder.path)

    # Saving and resuming

    def _save(self) -> None:
        """Write a checkpoint of this update and drop those no longer needed."""
        training = {
            f"optimizer.{number}.{index}.{name}": value for number, optimizer in enumerate(self.optimizers)
            for index, values in optimizer.state_dict()["state"].items() for name, value in values.items()}
        weights = weights_of(self.model)
        if self.average is not None:
            training |= {f"raw.{name}": weight for name, weight in weights.items()}
            weights = self.average.weights
        self.folder.save_checkpoint(self.state.update, weights, training, asdict(self.state))
        needed = self._averaged_updates() + [v["update"] for v in self._ranked()[:1]]
        self.folder.prune(resumable=RESUMABLE_CHECKPOINTS, weights=needed)

    def _resume(self) -> None:
        """Take up the newest checkpoint that is whole."""
        updates = self.folder.resumable()
        for update in updates:
            try:
                weights, training, state = self.folder.load_checkpoint(update)
            except UserError as damage:
                say(f"warning: {damage}; trying the checkpoint before it")
                continue
            self._restore(weights, training)
            self.state = TrainingState(**state)
            return
        if updates:
            raise UserError(f"{self.folder.checkpoints}: no checkpoint can be read; choose another name= to start anew")

    def _restore(self, weights: Weights, training: Weights) -> None:
        if self.average is not None:
            self.average.load(weights)
            weights = {name.removeprefix("raw."): w for name, w in training.items() if name.startswith("raw.")}
        load_into(self.model, weights, self.folder.checkpoints)
        for number, optimizer in enumerate(self.optimizers):
            states: dict[int, dict[str, Tensor]] = {}
            for key, tensor in training.items():
                if key.startswith(f"optimizer.{number}."):
                    index, name = key.split(".")[2:]
                    states.setdefault(int(index), {})[name] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": states})

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """Inside, a first SIGINT or SIGTERM raises Interrupted where nothing is half done."""
        def handle(number: int, frame: object) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            say("stopping: saving a checkpoint first; press Ctrl-C again to leave at once")
            if not self._in_update:
                raise Interrupted

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _log(self, step: Step, batches: Sequence[Batch], tokens_per_second: float) -> None:
        padding = sum(batch.padding for batch in batches) / len(batches)
        self._tracker.scalars(self.state.update, {
            "train/loss": float(step.loss), "train/perplexity": math.exp(min(float(step.nll), 700)),
            "train/gradient_norm": float(step.gradient_norm), "train/learning_rate": step.learning_rate,
            "train/tokens_per_second": tokens_per_second, "train/padding": padding, "train/epoch": self._epochs()})
        self._progress.advance(
            self._fraction(),
            f"epoch {self._epochs():.2f}  update {self.state.update:,}  loss {float(step.loss):.3f}  "
            f"{tokens_per_second:,.0f} tokens/s  lr {step.learning_rate:.2e}")
