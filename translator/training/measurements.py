"""Log a training: means over its updates, progress, a warning when it diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence

from translator.data.batching import Batch
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runs.training_state import TrainingState
from translator.runtime.console import Progress, log
from translator.runtime.distributed import is_main_process
from translator.training.batch_cursor import BatchCursor
from translator.training.updater import Step


class Measurements:
    """Collects in `state` what updates measured; the main process writes it to the run folder and the console."""

    def __init__(self, folder: RunFolder, state: TrainingState, *, done: float) -> None:
        self.state = state
        self.tracker = (
            Tracker(folder.metrics_file, folder.tensorboard, recorded=state.recorded) if is_main_process() else None)
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
            "train/epoch": cursor.epochs, "train/tokens": state.tokens, **({"train/skipped": state.skipped} if fp16 else {})})
        self._progress.advance(
            done, f"{cursor.unit} {cursor.epochs:.2f}", f"update {state.update:,}", f"loss {loss:.3f}",
            f"{tokens_per_second:,.0f} tokens/s", f"lr {step.learning_rate:.2e}")

    def flush(self) -> None:
        if self.tracker is not None:
            self.state.recorded = self.tracker.flush()

    def close(self) -> None:
        self._progress.close()
        if self.tracker is not None:
            self.tracker.close()
