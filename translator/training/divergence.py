"""Warn when a training diverges."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the newest loss in the moving average.
NEWEST = 0.1
# A loss this many times the lowest average is far above it.
FAR = 1.5
# Far losses in a row until the warning.
PATIENCE = 20


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
