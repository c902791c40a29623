"""The training loop: update, validate, stop, save, resume."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace

import torch

from translator.config.options import RunConfig
from translator.data.preparation import Corpus
from translator.metrics.scores import better
from translator.model.transformer import Transformer
from translator.model.weights import load_into, weights_of
from translator.runs.run_folder import RunFolder
from translator.runs.training_state import Metrics, Outcome, TrainingState, Validation, outcome_of, state_of
from translator.runtime.atomic_files import Weights, save_tensors
from translator.runtime.console import log
from translator.runtime.device import Precision, advise_when_out_of_memory, give_back_freed_memory
from translator.runtime.distributed import broadcast_from_main, full_tensors_on_main, is_main_process, sum_over_processes
from translator.runtime.errors import Interrupted, UserError
from translator.runtime.signals import Interruption
from translator.training.alignment import lexicon_of
from translator.training.optimizers import WeightAverage, learning_rate
from translator.training.progress import BatchCursor, Measurements
from translator.training.teacher import Teacher
from translator.training.updater import Step, Updater
from translator.training.validation import Translate, Validator, ranked, stop_reason, to_average, to_keep

TOO_LARGE = "the model does not fit; choose a smaller one: model=small, or less of model.d_model and model.encoder_layers"


def new_model(config: RunConfig, corpus: Corpus, device: torch.device | str = "cpu") -> Transformer:
    """Build an untrained model for a corpus: its weights depend on `config.seed` only. OutOfMemory where it does not fit."""
    torch.manual_seed(config.seed)
    with advise_when_out_of_memory(TOO_LARGE):
        return Transformer(config.model, len(corpus.source_tokenizer), len(corpus.target_tokenizer)).to(device)


class Trainer:
    """Train `model` on a corpus in a run folder, from its newest checkpoint if there is one."""

    def __init__(self, config: RunConfig, folder: RunFolder, corpus: Corpus, model: Transformer, translate: Translate, *,
                 precision: Precision, teacher: Teacher | None = None) -> None:
        """`model`, `teacher`: on their device. `translate`: source sentences to translations, by `model` as it stands."""
        self.config, self.corpus, self.model = config, corpus, model
        self.folder, self.checkpoints = folder, folder.checkpoints
        lexicon = broadcast_from_main(lambda: lexicon_of(folder, corpus)) if config.train.guided_alignment else None
        self.updater = Updater(model, config.optim, config.train, precision=precision, lexicon=lexicon, teacher=teacher)
        self.average = WeightAverage(self.updater.model, config.optim.ema_decay) if config.optim.ema_decay else None
        self.validator = Validator(corpus, model, translate, self.updater.loss, language=config.data.language,
                                   metrics=(config.train.metric, *config.train.keep), max_tokens=config.train.max_tokens)
        self.state = TrainingState(teacher="" if teacher is None else teacher.digest)
        self._resume()
        self.cursor = BatchCursor(config, corpus, self.state)
        self._interruption = Interruption()
        self._trained: Weights | None = None  # the weights that are trained, while the model has others

    def fit(self) -> Outcome:
        """Train to the first limit and leave the chosen weights in the run folder. Raises Interrupted, with all saved."""
        self._measurements = Measurements(self.config, self.folder, self.state, done=self._fraction())
        self._started = time.monotonic() - self.state.seconds
        with closing(self._measurements), self._interruption.caught(), closing(self):
            try:
                # From now on, a run without checkpoints has lost them.
                if broadcast_from_main(lambda: not self.checkpoints.resumable()):
                    self._save()
                return self._train()
            except Interrupted:
                self._save()
                log(f"Stopped at update {self.state.update:,}, saved in {self.folder.path}. "
                    "The same command resumes.")
                raise

    def close(self) -> None:
        self.cursor.close()

    def _train(self) -> Outcome:
        while True:
            self._agree()
            if self._validation_due():  # first: a run stopped before its validation takes it up here
                self._validate()
                continue  # the processes agree on the time it took
            if reason := stop_reason(self.config.train, self._limits(), self.state.validations):
                outcome = self._finish(reason)
                if self._measurements.tracker is not None:
                    self._measurements.tracker.end(outcome.update, outcome.metrics)
                return outcome
            with self._interruption.put_off():
                self._update()

    def _agree(self) -> None:
        """Give all processes the main one's clock, and stop them together where any got a signal."""
        ours = self.state.seconds if is_main_process() else 0.0
        self.state.seconds, asked = sum_over_processes(ours, self._interruption.asked or 0)
        if asked:
            log("stopping: saving a checkpoint first")
            raise Interrupted(self._interruption.asked or signal.SIGTERM)

    def _update(self) -> None:
        started = time.perf_counter()
        state = self.state
        self.cursor.enter_stage(self._fraction())
        rate = self.cursor.stage.rate * learning_rate(self.config.optim, state.update + 1, self._fraction())
        batches = self.cursor.next_batches()
        state.update += 1
        step = self.updater.step(batches, rate)
        finite = math.isfinite(step.gradient_norm)
        if not finite:
            self._skip(step)
        if self.average is not None:
            self.average.update(self.updater.model, state.update)
        state.tokens += step.tokens
        state.seconds = time.monotonic() - self._started
        if state.update % 50 == 0:  # it takes a third of an update
            give_back_freed_memory()
        if finite:
            self._measurements.add(step, batches, time.perf_counter() - started)
        if state.update % self.config.train.log_every == 0:
            self._measurements.write(step, self.cursor, done=self._fraction(), fp16=self.updater.scaler.is_enabled())

    def _skip(self, step: Step) -> None:
        """Count an update that fp16's loss scale was too large for; for any other reason raise UserError, naming the batch."""
        self.state.skipped += 1
        if self.updater.scaler.is_enabled() and self.updater.scaler.get_scale() >= 1:  # below that the reason is another
            return
        raise UserError(f"update {self.state.update:,}: the gradient is {step.gradient_norm} and the loss {step.loss}, on "
                        f"{self.cursor.sentences()}. Training stopped; its last good checkpoint is that of update "
                        f"{max(self.checkpoints.resumable(), default=0):,} in {self.checkpoints.path}. Try under another name= "
                        "with a lower optim.lr or a longer optim.warmup_updates.")

    def _limits(self) -> dict[str, float]:
        """Return the fraction of the training that is done, by each limit that is set."""
        train, minutes = self.config.train, self.state.seconds / 60
        limits = {
            "max_epochs": (self.cursor.epochs, train.max_epochs), "max_updates": (self.state.update, train.max_updates),
            "max_minutes": (minutes, train.max_minutes)}
        return {f"train.{name}={limit:g}": done / limit for name, (done, limit) in limits.items() if limit is not None}

    def _fraction(self) -> float:
        """Return the fraction of the training that is done, 0 to 1, by the nearest limit."""
        return min(1.0, max(self._limits().values()))

    def _validation_due(self) -> bool:
        update = self.state.update
        if any(v["update"] == update for v in self.state.validations):
            return False
        if update == 0:
            return self.config.init is not None  # how good the imported model is
        return self._fraction() >= 1 or update % self.config.train.interval == 0

    def _validate(self) -> None:
        """Score the weights as they stand, save a checkpoint, and the model if it is the best so far."""
        self._save()  # a validation can take long, and nothing should be lost meanwhile
        with self._using(None if self.average is None else self.average.weights):
            metrics, translations = self.validator.measure()
            with self._interruption.put_off():  # what is recorded and what is saved go together
                self.state.validations.append({"update": self.state.update, **metrics})
                if (tracker := self._measurements.tracker) is not None:
                    best = self._best()["update"] == self.state.update
                    self.validator.show(self.state.update, metrics, translations, tracker, best=best)
                    earlier = outcome_of(self.folder.load_outcome())
                    stays = earlier is not None and earlier.surpasses(metrics, self.config.train.metric)
                    if best and not stays:
                        self._save_model(weights_of(self.model))
                    self._keep_best(metrics)
                self.state.seconds = time.monotonic() - self._started
                self._save()  # the same update once more: only its state is new
        give_back_freed_memory()

    def _keep_best(self, metrics: Metrics) -> None:
        """Keep the weights as they stand for each metric of `train.keep` by which they are the best so far."""
        update = self.state.update
        for metric in self.config.train.keep:
            if ranked(self.state.validations, metric)[0]["update"] == update:
                outcome = Outcome(update, f"checkpoint of update {update:,}", metrics, f"best {metric} so far")
                self.folder.save_best(metric, weights_of(self.model), asdict(outcome))

    def _save_model(self, weights: Weights) -> None:
        self.folder.outcome_file.unlink(missing_ok=True)  # of an earlier end, with other weights
        save_tensors(self.folder.model_file, weights)

    def _finish(self, reason: str) -> Outcome:
        """Leave the better of the best checkpoint and the average of several as the run's model."""
        metric = self.config.train.metric
        earlier = outcome_of(broadcast_from_main(self.folder.load_outcome))
        if earlier is not None and earlier.update == self.state.update and broadcast_from_main(self.folder.model_file.is_file):
            return earlier
        best = self._best()
        kept, metrics = f"checkpoint of update {best['update']:,}", {k: v for k, v in best.items() if k != "update"}
        averaged = broadcast_from_main(lambda: self.checkpoints.readable(to_average(self.state.validations, self.config.train)))
        # If not readable, model.safetensors already holds them.
        updates = broadcast_from_main(lambda: self.checkpoints.readable([best["update"]]))
        if len(averaged) > 1:
            with self._using(self.checkpoints.average(averaged)):
                of_average, _ = self.validator.measure()
            if better(metric, of_average[metric], metrics[metric]):
                kept, metrics = f"average of updates {', '.join(f'{u:,}' for u in sorted(averaged))}", of_average
                updates = averaged
        outcome = Outcome(self.state.update, kept, metrics, reason)
        if earlier is not None and earlier.surpasses(metrics, metric):
            outcome, updates = replace(outcome, kept=earlier.kept, metrics=earlier.metrics), []
        if is_main_process():
            if updates:
                self._save_model(self.checkpoints.average(updates))
            self.folder.save_outcome(asdict(outcome))
        return outcome

    def _best(self) -> Validation:
        return ranked(self.state.validations, self.config.train.metric)[0]

    @contextmanager
    def _using(self, weights: Weights | None) -> Iterator[None]:
        """Inside, `model` has these weights; None: the trained ones."""
        own = weights_of(self.updater.model)
        if self.updater.model is not self.model:  # sharded: `model` serves for this only
            load_into(self.model, weights or own, self.folder.path)
            yield
        elif weights is None:
            yield
        else:
            # A signal may come anywhere: until the weights are back, `_save` takes these.
            self._trained = {name: weight.clone() for name, weight in own.items()}
            try:
                load_into(self.model, weights, self.folder.path)
                yield
            finally:
                load_into(self.model, self._trained, self.folder.path)
                self._trained = None

    def _save(self) -> None:
        """Write a checkpoint of this update and delete those no longer needed."""
        weights = self._trained or weights_of(self.updater.model)
        training = {f"optimizer.{name}": tensor for name, tensor in self.updater.state().items()}
        if self.average is not None:
            training |= {f"raw.{name}": weight for name, weight in weights.items()}
            weights = self.average.weights
        weights, training = full_tensors_on_main(weights), full_tensors_on_main(training)
        self.state.scaler = self.updater.scaler.state_dict()
        if self._measurements.tracker is not None:  # in the main process
            self.state.recorded = self._measurements.tracker.flush()
            self.folder.save_checkpoint(self.state.update, weights, training, asdict(self.state))
            # Two to resume from: if the newest turns out damaged, the one before serves.
            self.checkpoints.prune(resumable=2, weights=to_keep(self.state.validations, self.config.train))

    def _resume(self) -> None:
        """Load the newest undamaged checkpoint; UserError where all are damaged."""
        update = broadcast_from_main(self.folder.newest_checkpoint)
        if update is None:
            return
        path = self.checkpoints.path
        weights, training, state = self.checkpoints.load(update)
        load_into(self.updater.model, weights, path)
        if self.average is not None:
            self.average.load(weights)
            load_into(self.updater.model, _under("raw.", training), path)
        try:
            self.updater.load_state(_under("optimizer.", training))
            teacher, self.state = self.state.teacher, state_of(state, path, self.config.train.metric)
            self.updater.scaler.load_state_dict(self.state.scaler)
        except (ValueError, IndexError, KeyError) as error:
            raise UserError(f"{path}: update {update:,} was saved by a training with other options: {error}") from error
        if self.state.teacher != teacher:
            raise UserError(f"train.teacher={self.config.train.teacher}: its weights have changed since this run began. "
                            "Restore them, or choose another name=.")


def _under(prefix: str, tensors: Weights) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
