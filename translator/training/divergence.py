"""Telling when a training no longer learns but falls apart."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the newest loss in the running level.
NEWEST = 0.1
# A loss this many times the lowest running level is far above it.
FAR = 1.5
# Losses in a row that are a long time.
LONG = 20


@dataclass
class Divergence:
    """Watches the losses of a training as they are logged."""

    level: float | None = None  # the running one
    lowest: float | None = None  # of the running levels
    far: int = 0  # losses in a row that were far above it

    def tells(self, loss: float) -> str:
        """A warning where this loss is the last of a long time far above the lowest level; else nothing. Once each time."""
        self.level = loss if self.level is None else self.level + NEWEST * (loss - self.level)
        self.lowest = self.level if self.lowest is None else min(self.lowest, self.level)
        self.far = self.far + 1 if loss > FAR * self.lowest else 0
        if self.far != LONG:
            return ""
        return (f"the loss, {loss:.3f}, has long been far above its lowest level, {self.lowest:.3f}: the training diverges; "
                "stop it and try under another name= with a lower optim.lr or a longer optim.warmup_updates")
