"""Telling when a training no longer learns but falls apart (floor 1)."""

from __future__ import annotations

# Weight of the newest loss in the running level.
NEWEST = 0.1
# A loss this many times the lowest running level is far above it.
FAR = 1.5
# Losses in a row that are a long time.
LONG = 20


class Divergence:
    """Watches the losses of a training as they are logged."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._lowest = float("inf")
        self._far = 0  # losses in a row

    def tells(self, loss: float) -> str:
        """A warning where this loss is the last of a long time far above the lowest level; else nothing. Once each time."""
        self._level = loss if self._level is None else self._level + NEWEST * (loss - self._level)
        self._lowest = min(self._lowest, self._level)
        self._far = self._far + 1 if loss > FAR * self._lowest else 0
        if self._far != LONG:
            return ""
        return (f"the loss, {loss:.3f}, has long been far above its lowest level, {self._lowest:.3f}: the training diverges; "
                "stop it and try a lower optim.lr or a longer optim.warmup_updates")
