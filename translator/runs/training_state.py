"""State and outcome of a training, as its run folder keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictFloat, StrictInt
from pydantic.dataclasses import dataclass

from translator.metrics.scores import better
from translator.runtime.errors import UserError

FORBID = ConfigDict(extra="forbid")
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Number = Annotated[StrictInt, Field(gt=-(2**63), lt=2**63)] | StrictFloat

Metrics = dict[str, float]
Validation = dict[str, Any]  # {"update": int, metric: value, ...}
History = Mapping[str, Sequence[tuple[float, float]]]  # (update, value) pairs of each measurement

# Weight of the newest loss in a moving average. A loss FAR times the lowest average, PATIENCE times in a row, is a divergence.
NEWEST, FAR, PATIENCE = 0.1, 1.5, 20


@dataclass(config=FORBID)
class Divergence:
    """Watches the losses of a training as they are logged."""

    level: StrictFloat | None = None  # moving average
    lowest: StrictFloat | None = None  # of the averages
    far: Count = 0  # losses in a row that were far above it

    def warning(self, loss: float) -> str:
        """Return a warning if this loss is the 20th in a row far above the lowest level; else an empty text."""
        self.level = loss if self.level is None else self.level + NEWEST * (loss - self.level)
        self.lowest = self.level if self.lowest is None else min(self.lowest, self.level)
        self.far = self.far + 1 if loss > FAR * self.lowest else 0
        if self.far != PATIENCE:
            return ""
        return (f"the loss, {loss:.3f}, has long been far above its lowest level, {self.lowest:.3f}: the training diverges. "
                "Stop it and try under another name= with a lower optim.lr or a longer optim.warmup_updates")


@dataclass(config=FORBID)
class TrainingState:
    """Progress of a training: with weights and optimizer state, all it takes to resume."""

    update: Count = 0
    epoch: Count = 0
    batch: Count = 0  # batches of this epoch already used
    stage: Count = 0  # of train.stages; `epoch` counts within it
    earlier_epochs: Annotated[float, Field(strict=True, ge=0, lt=2**63)] = 0.0  # of the stages before
    tokens: Count = 0  # target tokens of all updates
    seconds: Annotated[float, Field(strict=True, ge=0, lt=2**63)] = 0.0
    skipped: Count = 0  # updates whose gradient was not finite in fp16
    teacher: str = ""  # digest of the weights of train.teacher
    scaler: dict[str, Number] = field(default_factory=dict)  # fp16's
    divergence: Divergence = field(default_factory=Divergence)
    unlogged: dict[str, Number] = field(default_factory=dict)  # sums over the updates since the last line of measurements
    validations: list[dict[str, Number]] = field(default_factory=list)  # each a `Validation`
    recorded: dict[str, Count] = field(default_factory=dict)  # bytes of each file of measurements


@dataclass(frozen=True, config=FORBID)
class Outcome:
    """The end of a training."""

    update: StrictInt
    kept: str  # which weights
    metrics: dict[str, Number]  # of these weights on the validation split
    reason: str  # why training stopped

    def surpasses(self, metrics: Metrics, metric: str) -> bool:
        """Return whether its metric is better than that of other metrics; False where it is unknown."""
        return metric in self.metrics and better(metric, self.metrics[metric], metrics[metric])


def state_of(values: Any, where: Path, metric: str) -> TrainingState:
    """Rebuild a state from its `asdict`; UserError for anything else."""
    try:
        state = TrainingState(**values)
        if all(type(v["update"]) is int and {metric, "loss"} <= v.keys() for v in state.validations):
            return state
    except (TypeError, KeyError, ValueError):
        pass
    raise UserError(f"{where}: state.json has unknown or impossible values. Restore the checkpoint from a backup, or use the "
                    "release that wrote it.")


def outcome_of(values: Any) -> Outcome | None:
    """Rebuild an outcome from its `asdict`; None for anything else."""
    try:
        return Outcome(**values)
    except (TypeError, ValueError):
        return None
