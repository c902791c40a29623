"""The training loop: update, validate, stop, save, resume.

It knows nothing of search: the validator translates through a function it is given.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from translator.config.options import RunConfig
from translator.data.batching import Batch, BatchSource, empty_batch
from translator.data.preparation import Corpus
from translator.data.stream import WindowSource
from translator.metrics.scores import better
from translator.model.transformer import Transformer
from translator.model.weights import load_into, weights_of
from translator.runs.checkpoint import Checkpoint
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runs.training_state import Outcome, TrainingState, Unlogged, Validation, outcome_of, state_of
from translator.runtime.atomic_files import Weights, save_tensors
from translator.runtime.console import Progress, log
from translator.runtime.device import Precision
from translator.runtime.distributed import (
    broadcast_from_main,
    full_tensors_on_main,
    is_main_process,
    own_items,
    sum_over_processes,
    world_size,
)
from translator.runtime.errors import UserError
from translator.runtime.memory import advise_when_out_of_memory, give_back_freed_memory
from translator.runtime.signals import Interrupted, Interruption
from translator.training.checkpoint_choice import fraction_done, out_of_patience, ranked, to_average, to_keep
from translator.training.divergence import Divergence
from translator.training.optimizers import WeightAverage, learning_rate
from translator.training.updater import Step, Updater
from translator.training.validation import Translate, Validator

TOO_LARGE = "the model does not fit; choose a smaller one: model=small, or less of model.d_model and model.encoder_layers"
# Checkpoints kept whole: if the newest turns out damaged, the one before still serves.
RESUMABLE_CHECKPOINTS = 2
# Updates after which memory that lies about in pieces is given back: that costs about a third of an update.
GIVE_BACK_EVERY = 50
TIMED_BATCHES = 4  # of an update, in each process; one may take many, and nobody should wait for all of them to be timed
# Sentences of a bad batch that are named.
NAMED_SENTENCES = 5
# A gradient that is not finite at a smaller scale than this has another reason.
SMALLEST_SCALE = 1.0


def new_model(config: RunConfig, corpus: Corpus, device: torch.device | str = "cpu") -> Transformer:
    """An untrained model for a corpus: its weights are a function of `config.seed`. OutOfMemory where it does not fit."""
    torch.manual_seed(config.seed)
    with advise_when_out_of_memory(TOO_LARGE):
        return Transformer(config.model, len(corpus.source_tokenizer), len(corpus.target_tokenizer)).to(device)


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
        precision: Precision,
    ) -> None:
        """`translate`: source sentences to translations, by `model` as it stands. `model` is on its device already."""
        self.config = config
        self.folder, self.checkpoints = folder, folder.checkpoints
        self.corpus = corpus
        self.model = model
        self.updater = Updater(model, config.optim, config.train, precision=precision)
        self.average = WeightAverage(self.updater.model, config.optim.ema_decay) if config.optim.ema_decay else None
        tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
        how: dict[str, Any] = {"max_tokens": config.train.max_tokens, "longest": config.longest_pair(), "seed": config.seed}
        sampling = config.tokenizer.sampling
        self.batches: BatchSource | WindowSource = (
            BatchSource(corpus.train, tokenizers, sampling=sampling, **how) if config.data.window is None
            else WindowSource(
                config.data, corpus, sampling=sampling, timeout_minutes=config.train.timeout_minutes, **how))
        self.unit = "epoch" if config.data.window is None else "window"  # what the numbers of epochs count
        self.validator = Validator(
            corpus, model, translate, self.updater.loss, language=config.data.language, metric=config.train.metric,
            max_tokens=config.train.max_tokens)
        self.state = TrainingState()
        self._resume()
        self._of_update = slice(0, 0)  # which batches of the epoch the last update took, all processes' together
        self._interruption = Interruption()
        self._divergence = Divergence(**self.state.divergence)
        self._unlogged = Unlogged(**self.state.unlogged)
        self._trained: Weights | None = None  # the weights that are trained, while the model has others

    # The plan

    def time_update(self) -> float:
        """Seconds that an update of usual size takes, after one of the largest: memory that suffices here suffices to the end.

        All are updates at a learning rate of 0, after which the optimizers forget them.
        """
        # Not on a GPU, whose memory a training that is resumed would need twice for it.
        remembered = {name: tensor.to("cpu", copy=True) for name, tensor in self.updater.state().items()}
        scaler = self.updater.scaler.state_dict()
        largest, usual = self.batches.of_sizes(self.state.epoch, 1.0, 0.5)
        rounds = self._rounds(min(self.config.train.batches_of_update, len(self.batches.plan(self.state.epoch))))
        timed = min(rounds, TIMED_BATCHES)
        set_up = 2 if self.updater.device.type == "cuda" else 1  # where updates are replayed, one of them pays for recording
        for batch in (largest, *[usual] * set_up, usual):
            start = time.perf_counter()
            self.updater.step([batch] * timed, 0.0)
            seconds = time.perf_counter() - start
        self.updater.load_state(remembered)
        self._load_scaler(scaler)
        return seconds * rounds / timed

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(len(self.batches.plan(self.state.epoch)) / self.config.train.batches_of_update)

    # The loop

    def fit(self) -> Outcome:
        """Train to the first limit and leave the chosen weights in the run folder.

        Raises Interrupted, with everything saved, on SIGINT, SIGTERM or SIGHUP; a second signal ends the process at once.
        """
        self._tracker: Tracker | None = None
        if is_main_process():
            self._tracker = Tracker(self.folder.metrics_file, self.folder.tensorboard, recorded=self.state.recorded)
        self._progress = Progress(done=self._fraction())
        self._started = time.monotonic() - self.state.seconds
        try:
            with self._interruption.caught():
                try:
                    # From now on, a run without checkpoints has lost them.
                    if broadcast_from_main(lambda: not self.checkpoints.resumable()):
                        self._save()
                    return self._train()
                except Interrupted:
                    self._save()
                    log(f"Stopped at update {self.state.update:,}, saved in {self.folder.path}. "
                        "The same command goes on from there.")
                    raise
                finally:
                    self.close()
        finally:
            self._progress.close()
            if self._tracker is not None:
                self._tracker.close()

    def close(self) -> None:
        """Leave off reading ahead, which the end of the program would wait for."""
        if isinstance(self.batches, WindowSource):
            self.batches.close()

    def _train(self) -> Outcome:
        while True:
            self._agree()
            if self._validation_due():  # first: a run stopped before its validation takes it up here
                self._validate()
                continue  # with its time agreed on
            if reason := self._stop_reason():
                return self._finish(reason)
            with self._interruption.put_off():
                self._update()

    def _agree(self) -> None:
        """Have several processes go by one clock, and stop together where one was told to."""
        if world_size() > 1:
            ours = self.state.seconds if is_main_process() else 0.0
            self.state.seconds, asked = sum_over_processes(ours, self._interruption.asked or 0)
            if asked:
                log("stopping: saving a checkpoint first")
                raise Interrupted(self._interruption.asked or signal.SIGTERM)

    def _update(self) -> None:
        """The next batches, one step of the optimizer, and the books."""
        started = time.perf_counter()
        config, state = self.config, self.state
        rate = learning_rate(config.optim, state.update + 1, self._fraction())
        batches = self._next_batches()
        state.update += 1
        step = self.updater.step(batches, rate)
        if not (taken := math.isfinite(step.gradient_norm)):
            self._skip(step)
        if self.average is not None:
            self.average.update(self.updater.model, state.update)
        state.tokens += step.tokens
        state.seconds = time.monotonic() - self._started
        if state.update % GIVE_BACK_EVERY == 0:
            give_back_freed_memory()
        if taken:
            self._unlogged.add(
                tokens=step.tokens, seconds=time.perf_counter() - started, loss=step.loss, nll=step.nll,
                padding=sum(batch.padding for batch in batches) / len(batches))
        if state.update % config.train.log_every == 0:
            self._log(step)

    def _skip(self, step: Step) -> None:
        """Count an update that fp16's scale was too large for; UserError, naming the batch, where that is not the reason."""
        self.state.skipped += 1
        if self.updater.scaler.is_enabled() and self.updater.scaler.get_scale() >= SMALLEST_SCALE:
            return
        update, last = self.state.update, max(self.checkpoints.resumable(), default=0)
        rows = np.concatenate(self.batches.plan(self.state.epoch)[self._of_update])
        numbers = ", ".join(f"{row + 1:,}" for row in sorted(rows)[:NAMED_SENTENCES])
        more = f" and {len(rows) - NAMED_SENTENCES:,} more" if len(rows) > NAMED_SENTENCES else ""
        of_window = "" if self.unit == "epoch" else f" of window {self.state.epoch + 1}"
        raise UserError(
            f"update {update:,}: the gradient is {step.gradient_norm} and the loss {step.loss}, on sentences "
            f"{numbers}{more} of those kept{of_window}, so training stopped; its last good checkpoint is that of update "
            f"{last:,} in {self.checkpoints.path}; try under another name= with a lower optim.lr or a longer "
            "optim.warmup_updates")

    def _next_batches(self) -> list[Batch]:
        """This process's batches of the next update, of which an epoch's end may leave fewer than train.accumulation.

        Each process gets equally many: where they cannot be shared evenly, some of them are empty.
        """
        state = self.state
        if state.batch >= len(self.batches.plan(state.epoch)):
            state.epoch, state.batch = state.epoch + 1, 0
        end = min(state.batch + self.config.train.batches_of_update, len(self.batches.plan(state.epoch)))
        self._of_update = slice(state.batch, end)
        state.batch = end
        mine = [self.batches.batch(state.epoch, number) for number in own_items(range(self._of_update.start, end))]
        return mine + [empty_batch()] * (self._rounds(end - self._of_update.start) - len(mine))

    def _rounds(self, batches: int) -> int:
        """Batches that each process takes of so many."""
        return math.ceil(batches / world_size())

    # When to stop

    def _epochs(self) -> float:
        return self.state.epoch + self.state.batch / len(self.batches.plan(self.state.epoch))

    def _fraction(self) -> float:
        return fraction_done(
            self.config.train, epochs=self._epochs(), updates=self.state.update, minutes=self.state.seconds / 60)

    def _stop_reason(self) -> str:
        """Why training is over; empty while it is not."""
        if self._fraction() >= 1:
            return "the limit set in train.max_epochs, train.max_updates or train.max_minutes"
        if out_of_patience(self.state.validations, self.config.train):
            return f"no better {self.config.train.metric} in {self.config.train.patience} validations"
        return ""

    def _validation_due(self) -> bool:
        update = self.state.update
        if any(v["update"] == update for v in self.state.validations):
            return False
        if update == 0:
            return self.config.init is not None  # which tells what there is to improve on
        return self._fraction() >= 1 or update % self.config.train.interval == 0

    # Validation and the choice of weights

    def _validate(self) -> None:
        """Measure the weights as they stand, save a checkpoint, and the model if it is the best so far."""
        average = None if self.average is None else self.average.weights
        self._save()  # a validation can take long, and nothing should be lost meanwhile
        with self._using(average):
            metrics, translations = self.validator.measure()
            with self._interruption.put_off():  # what is recorded and what is saved go together
                if self._tracker is not None:
                    self.validator.show(self.state.update, metrics, translations, self._tracker)
                self.state.validations.append({"update": self.state.update, **metrics})
                earlier = outcome_of(self.folder.load_outcome()) if is_main_process() else None
                stays = earlier is not None and earlier.surpasses(metrics, self.config.train.metric)
                if is_main_process() and self._best()["update"] == self.state.update and not stays:
                    self.folder.outcome_file.unlink(missing_ok=True)  # of an earlier end, which these weights are not
                    save_tensors(self.folder.model_file, weights_of(self.model))
                self.state.seconds = time.monotonic() - self._started
                self._save()  # of this update once more: its state alone is new
        give_back_freed_memory()

    def _finish(self, reason: str) -> Outcome:
        """Leave the better of the best checkpoint and the average of several as the run's model."""
        earlier = outcome_of(broadcast_from_main(self.folder.load_outcome))
        if earlier is not None and earlier.update == self.state.update and broadcast_from_main(self.folder.model_file.is_file):
            return earlier
        best = self._best()
        kept, metrics = f"checkpoint of update {best['update']:,}", {k: v for k, v in best.items() if k != "update"}
        updates = broadcast_from_main(lambda: self.checkpoints.readable(to_average(self.state.validations, self.config.train)))
        # If not readable, model.safetensors already holds them.
        of_kept = broadcast_from_main(lambda: self.checkpoints.readable([best["update"]]))
        if len(updates) > 1:
            with self._using(self.checkpoints.average(updates)):
                averaged, _ = self.validator.measure()
            if better(self.config.train.metric, averaged[self.config.train.metric], metrics[self.config.train.metric]):
                kept, metrics = f"average of updates {', '.join(f'{u:,}' for u in sorted(updates))}", averaged
                of_kept = updates
        chosen = Outcome(self.state.update, kept, metrics, reason)
        if earlier is not None and earlier.surpasses(metrics, self.config.train.metric):
            chosen, of_kept = replace(chosen, kept=earlier.kept, metrics=earlier.metrics), []
        if is_main_process():
            if of_kept:
                self.folder.outcome_file.unlink(missing_ok=True)
                save_tensors(self.folder.model_file, self.checkpoints.average(of_kept))
            self.folder.save_outcome(asdict(chosen))
        return chosen

    def _best(self) -> Validation:
        return ranked(self.state.validations, self.config.train)[0]

    @contextmanager
    def _using(self, weights: Weights | None) -> Iterator[None]:
        """Inside, the model has these weights, and without any those that are trained."""
        own = weights_of(self.updater.model)
        if self.updater.model is not self.model:  # which serves for nothing else
            load_into(self.model, weights or own, self.folder.path)
            yield
        elif weights is None:
            yield
        else:
            # A signal may come anywhere: until the weights are back, these are what `_save` goes by.
            self._trained = {name: weight.clone() for name, weight in own.items()}
            try:
                load_into(self.model, weights, self.folder.path)
                yield
            finally:
                load_into(self.model, self._trained, self.folder.path)
                self._trained = None

    # Saving and resuming

    def _save(self) -> None:
        """Write a checkpoint of this update and drop those no longer needed."""
        self.state.scaler = self.updater.scaler.state_dict()
        self.state.divergence = asdict(self._divergence)
        self.state.unlogged = asdict(self._unlogged)
        weights = self._trained or weights_of(self.updater.model)
        training = {f"optimizer.{name}": tensor for name, tensor in self.updater.state().items()}
        if self.average is not None:
            training |= {f"raw.{name}": weight for name, weight in weights.items()}
            weights = self.average.weights
        weights, training = full_tensors_on_main(weights), full_tensors_on_main(training)
        if self._tracker is None:  # not ours to write
            return
        self.state.recorded = self._tracker.flush()
        self.folder.save_checkpoint(self.state.update, weights, training, asdict(self.state))
        self.checkpoints.prune(resumable=RESUMABLE_CHECKPOINTS, weights=to_keep(self.state.validations, self.config.train))

    def _resume(self) -> None:
        """Take up the newest checkpoint that is whole; UserError where there was one and none is left."""
        read: dict[int, Checkpoint] = {}
        update = broadcast_from_main(lambda: self.folder.newest_checkpoint(read))
        if update is None:
            return
        weights, training, state = read.get(update) or self.checkpoints.load(update)
        self._restore(weights, training)
        self.state = state_of(state, self.checkpoints.path, self.config.train.metric)
        self._load_scaler(self.state.scaler)

    def _restore(self, weights: Weights, training: Weights) -> None:
        if self.average is not None:
            load_into(self.updater.model, weights, self.checkpoints.path)  # which sees whether they are this model's
            self.average.load(weights)
            weights = _under("raw.", training)
        load_into(self.updater.model, weights, self.checkpoints.path)
        try:
            self.updater.load_state(_under("optimizer.", training))
        except (ValueError, IndexError, KeyError) as error:
            raise UserError(f"{self.checkpoints.path}: training.safetensors is of another training: {error}") from error

    def _load_scaler(self, state: dict[str, Any]) -> None:
        if state:  # there is none but in fp16
            try:
                self.updater.scaler.load_state_dict(state)
            except KeyError as error:
                raise UserError(f"{self.checkpoints.path}: state.json lacks {error} of the loss's scale") from error

    def _log(self, step: Step) -> None:
        """Measurements of the updates since those before; norm and rate are the last one's."""
        measured, self._unlogged = self._unlogged, Unlogged()
        if self._tracker is None or not measured.updates:
            return
        loss, tokens_per_second = measured.loss / measured.tokens, measured.tokens / measured.seconds
        if warning := self._divergence.tells(loss):
            log(f"update {self.state.update:,}: warning: {warning}")
        self._tracker.scalars(self.state.update, {
            "train/loss": loss, "train/perplexity": math.exp(min(measured.nll / measured.tokens, 700)),
            **({"train/gradient_norm": step.gradient_norm} if math.isfinite(step.gradient_norm) else {}),  # else it was skipped
            "train/learning_rate": step.learning_rate,
            "train/tokens_per_second": tokens_per_second, "train/padding": measured.padding / measured.updates,
            "train/epoch": self._epochs(), "train/tokens": self.state.tokens,
            **({"train/skipped": self.state.skipped} if self.updater.scaler.is_enabled() else {})})
        self._progress.advance(
            self._fraction(),
            f"{self.unit} {self._epochs():.2f}", f"update {self.state.update:,}", f"loss {loss:.3f}",
            f"{tokens_per_second:,.0f} tokens/s", f"lr {step.learning_rate:.2e}")


def _under(prefix: str, tensors: Weights) -> Weights:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
