"""Where a training stands, kept in its state: its place in the data, and what its updates measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from translator.config.augmentation import AugmentConfig
from translator.config.options import RunConfig
from translator.data.batching import Batch, BatchSource, empty_batch
from translator.data.preparation import Corpus
from translator.data.stream import WindowSource
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runs.training_state import TrainingState
from translator.runtime.console import Progress, log
from translator.runtime.distributed import is_main_process, own_items, world_size
from translator.runtime.seeds import derive_seed
from translator.training.stages import Stage, stages_of
from translator.training.updater import Step

STAGE = 5  # purpose of derived seeds


class BatchCursor:
    """Walks through the batches of epoch after epoch, stage after stage, and keeps its place in the training's state."""

    def __init__(self, config: RunConfig, corpus: Corpus, state: TrainingState) -> None:
        self.config, self.corpus, self.state = config, corpus, state
        self.stages = stages_of(config, corpus)
        self.unit = "epoch" if config.data.window is None else "window"  # what `state.epoch` counts
        self.batches_of_update = config.train.batches_of_update
        self._of_update = slice(0, 0)  # which batches of the epoch the last update took, all processes' together
        self.source = self._source(state.stage)

    def _source(self, number: int, **changes: Any) -> BatchSource | WindowSource:
        """Return the batches of a stage, with changes of `BatchSource`'s options."""
        config, corpus, stage = self.config, self.corpus, self.stages[number]
        options: dict[str, Any] = {
            "max_tokens": config.train.max_tokens, "longest": config.longest_pair(), "sampling": config.tokenizer.sampling,
            "seed": derive_seed(config.seed, STAGE, number) if number else config.seed, "augment": stage.augment,
            **changes}
        if config.data.window is not None:
            return WindowSource(config.data, corpus, timeout_minutes=config.train.timeout_minutes, **options)
        return BatchSource(
            corpus.train, (corpus.source_tokenizer, corpus.target_tokenizer), mix=stage.mix, **options)

    @property
    def stage(self) -> Stage:
        return self.stages[self.state.stage]

    def enter_stage(self, done: float) -> None:
        """Begin the next stage if this one is over. done: the fraction of the training that is."""
        state, before = self.state, self.state.stage
        while self.stage.is_over(update=state.update, epochs=self.epochs - state.earlier_epochs, done=done):
            state.earlier_epochs, state.epoch, state.batch = self.epochs, 0, 0
            state.stage += 1
            self.source = self._source(state.stage)
        for skipped in range(before + 1, state.stage):
            log(f"warning: train.stages: stage {skipped + 1} has no update: its end had come before its beginning")
        if state.stage > before:
            log(f"stage      {state.stage + 1} of {len(self.stages)} from update {state.update + 1:,}: {self.stage}")

    @property
    def batches_per_epoch(self) -> int:
        return len(self.source.plan(self.state.epoch))

    def updates_per_epoch(self, stage: int) -> int:
        """Return the number of updates in the present epoch; for other stages, in their first epoch."""
        if stage == self.state.stage:
            return math.ceil(self.batches_per_epoch / self.batches_of_update)
        plain = self._source(stage, augment=AugmentConfig())  # noise takes long to make, and changes few lengths
        return math.ceil(len(plain.plan(0)) / self.batches_of_update)

    @property
    def epochs(self) -> float:
        """How many have been trained on."""
        return self.state.earlier_epochs + self.state.epoch + self.state.batch / self.batches_per_epoch

    def next_batches(self) -> list[Batch]:
        """Return this process's batches of the next update: equally many in each process, so some may be empty."""
        state = self.state
        if state.batch >= self.batches_per_epoch:
            state.epoch, state.batch = state.epoch + 1, 0
        start, state.batch = state.batch, min(state.batch + self.batches_of_update, self.batches_per_epoch)
        self._of_update = slice(start, state.batch)
        own = [self.source.batch(state.epoch, number) for number in own_items(range(start, state.batch))]
        return own + [empty_batch()] * (math.ceil((state.batch - start) / world_size()) - len(own))

    def sentences(self) -> str:
        """Name the first sentences of the last update."""
        rows = np.unique(self.source.rows(self.state.epoch, self._of_update))
        numbers = ", ".join(f"{row + 1:,}" for row in rows[:5])
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        return f"sentences {numbers}{more} of those kept{'' if self.unit == 'epoch' else f' of window {self.state.epoch + 1}'}"

    def close(self) -> None:
        """Stop reading ahead: the end of the program would wait for that."""
        if isinstance(self.source, WindowSource):
            self.source.close()


class Measurements:
    """Collects in `state` what updates measured; the main process writes it to the run folder and the console."""

    def __init__(self, config: RunConfig, folder: RunFolder, state: TrainingState, *, done: float) -> None:
        self.state = state
        self.tracker = Tracker(folder.metrics_file, folder.tensorboard, state.recorded, config) if is_main_process() else None
        self._progress = Progress(done=done)

    def add(self, step: Step, batches: Sequence[Batch], seconds: float) -> None:
        """Count an update towards the next line."""
        sums, measured = self.state.unlogged, {
            "updates": 1, "tokens": step.tokens, "seconds": seconds, "loss": step.loss * step.tokens,
            "nll": step.nll * step.tokens, "padding": sum(batch.padding for batch in batches) / len(batches)}
        self.state.unlogged = {name: sums.get(name, 0) + value for name, value in measured.items()}

    def write(self, step: Step, cursor: BatchCursor, *, done: float, fp16: bool) -> None:
        """Write the means since the line before, with the last update's gradient norm and learning rate."""
        state, sums = self.state, self.state.unlogged
        state.unlogged = {}
        if self.tracker is None or not sums.get("updates"):
            return
        loss, tokens_per_second = sums["loss"] / sums["tokens"], sums["tokens"] / sums["seconds"]
        if warning := state.divergence.warning(loss):
            log(f"update {state.update:,}: warning: {warning}")
        self.tracker.scalars(state.update, {
            "train/loss": loss, "train/perplexity": math.exp(min(sums["nll"] / sums["tokens"], 700)),
            **({"train/gradient_norm": step.gradient_norm} if math.isfinite(step.gradient_norm) else {}),  # else it was skipped
            "train/learning_rate": step.learning_rate,
            "train/tokens_per_second": tokens_per_second, "train/padding": sums["padding"] / sums["updates"],
            "train/epoch": cursor.epochs, "train/tokens": state.tokens, **({"train/skipped": state.skipped} if fp16 else {}),
            **({"train/stage": state.stage + 1} if len(cursor.stages) > 1 else {})})
        self._progress.advance(done, f"{cursor.unit} {cursor.epochs:.2f}", f"update {state.update:,}", f"loss {loss:.3f}",
                               f"{tokens_per_second:,.0f} tokens/s", f"lr {step.learning_rate:.2e}")

    def close(self) -> None:
        self._progress.close()
        if self.tracker is not None:
            self.tracker.close()
