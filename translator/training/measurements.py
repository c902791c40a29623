"""Log a training: means over its updates, progress, a warning when it diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from translator.data.batching import Batch
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runs.training_state import TrainingState, Unlogged
from translator.runtime.console import Progress, log
from translator.runtime.distributed import is_main_process
from translator.training.updater import Step

# Weight of the newest loss in the moving average that a divergence is seen by.
NEWEST = 0.1
# A loss this many times the lowest average is far above it.
FAR = 1.5
# Far losses in a row until the warning.
PATIENCE = 20


class Measurements:
    """Collects what updates measured; the main process writes it to the run folder and the console."""

    def __init__(self, folder: RunFolder, state: TrainingState, *, done: float) -> None:
        """`done`: the fraction of the training."""
        self.tracker = (
            Tracker(folder.metrics_file, folder.tensorboard, recorded=state.recorded) if is_main_process() else None)
        self._progress = Progress(done=done)
        self._divergence = Divergence(**state.divergence)
        self._unlogged = Unlogged(**state.unlogged)

    def add(self, step: Step, batches: Sequence[Batch], seconds: float) -> None:
        """Count an update towards the next line."""
        sums = self._unlogged
        sums.updates += 1
        sums.tokens += step.tokens
        sums.seconds += seconds
        sums.loss += step.loss * step.tokens
        sums.nll += step.nll * step.tokens
        sums.padding += sum(batch.padding for batch in batches) / len(batches)

    def write(self, step: Step, state: TrainingState, *, epochs: float, unit: str, done: float, fp16: bool) -> None:
        """Write the means since the line before, with the last update's gradient norm and learning rate."""
        measured, self._unlogged = self._unlogged, Unlogged()
        if self.tracker is None or not measured.updates:
            return
        loss, tokens_per_second = measured.loss / measured.tokens, measured.tokens / measured.seconds
        if warning := self._divergence.warning(loss):
            log(f"update {state.update:,}: warning: {warning}")
        self.tracker.scalars(state.update, {
            "train/loss": loss, "train/perplexity": math.exp(min(measured.nll / measured.tokens, 700)),
            **({"train/gradient_norm": step.gradient_norm} if math.isfinite(step.gradient_norm) else {}),  # else it was skipped
            "train/learning_rate": step.learning_rate,
            "train/tokens_per_second": tokens_per_second, "train/padding": measured.padding / measured.updates,
            "train/epoch": epochs, "train/tokens": state.tokens, **({"train/skipped": state.skipped} if fp16 else {})})
        self._progress.advance(
            done, f"{unit} {epochs:.2f}", f"update {state.update:,}", f"loss {loss:.3f}",
            f"{tokens_per_second:,.0f} tokens/s", f"lr {step.learning_rate:.2e}")

    def save_to(self, state: TrainingState) -> None:
        """Leave in the state what a resumed training needs to measure on."""
        state.divergence, state.unlogged = asdict(self._divergence), asdict(self._unlogged)
        if self.tracker is not None:
            state.recorded = self.tracker.flush()

    def close(self) -> None:
        self._progress.close()
        if self.tracker is not None:
            self.tracker.close()


@dataclass
class Divergence:
    """Watches the losses of a training as they are logged."""

    level: float | None = None  # moving average
    lowest: float | None = None  # of the averages
    far: int = 0  # losses in a row that were far above it

    def warning(self, loss: float) -> str:
        """Return a warning if this loss is the 20th in a row far above the lowest level; else an empty text."""
        self.level = loss if self.level is None else self.level + NEWEST * (loss - self.level)
        self.lowest = self.level if self.lowest is None else min(self.lowest, self.level)
        self.far = self.far + 1 if loss > FAR * self.lowest else 0
        if self.far != PATIENCE:
            return ""
        return (f"the loss, {loss:.3f}, has long been far above its lowest level, {self.lowest:.3f}: the training diverges. "
                "Stop it and try under another name= with a lower optim.lr or a longer optim.warmup_updates")
