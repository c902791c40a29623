"""State and outcome of a training, as its run folder keeps them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from translator.metrics.scores import better
from translator.runtime.errors import UserError

Metrics = dict[str, float]
# {"update": int, metric: value, ...}
Validation = dict[str, Any]


@dataclass
class TrainingState:
    """Progress of a training: with weights and optimizer state, all it takes to resume."""

    update: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    tokens: int = 0  # target tokens of all updates
    seconds: float = 0.0
    skipped: int = 0  # updates whose gradient was not finite in fp16
    scaler: dict[str, Any] = field(default_factory=dict)  # fp16's
    divergence: dict[str, Any] = field(default_factory=dict)  # a `Divergence` of training.measurements
    unlogged: dict[str, Any] = field(default_factory=dict)  # an `Unlogged`
    validations: list[Validation] = field(default_factory=list)
    recorded: dict[str, int] = field(default_factory=dict)  # bytes of each file of measurements


@dataclass
class Unlogged:
    """Sums over the updates since the last line of measurements."""

    updates: int = 0
    tokens: int = 0  # target tokens
    seconds: float = 0.0
    loss: float = 0.0  # of all tokens
    nll: float = 0.0  # of all tokens
    padding: float = 0.0  # each update's fraction


@dataclass(frozen=True)
class Outcome:
    """The end of a training."""

    update: int
    kept: str  # which weights
    metrics: Metrics  # of these weights on the validation split
    reason: str  # why training stopped

    def surpasses(self, metrics: Metrics, metric: str) -> bool:
        """Return whether its metric is better than that of other metrics; False where it is unknown."""
        return metric in self.metrics and better(metric, self.metrics[metric], metrics[metric])


def state_of(values: Any, where: Path, metric: str) -> TrainingState:
    """Rebuild a state from its `asdict`; UserError for anything else."""
    try:
        state = TrainingState(**values)
        counts = [state.update, state.epoch, state.batch, state.tokens, state.skipped]
        counts += [validation["update"] for validation in state.validations]
        counts += state.recorded.values()
        numbers = [state.seconds, *state.scaler.values(), *asdict(Unlogged(**state.unlogged)).values()]
        numbers += [validation[name] for validation in state.validations for name in (metric, "loss")]
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where}: state.json was written by another release: {error}. Use that one.") from error
    counted = all(type(count) is int and 0 <= count < 2**63 for count in counts)
    if not (counted and all(map(_is_number, numbers)) and 0 <= state.seconds < 2**63):
        raise UserError(f"{where}: state.json holds impossible values. Restore the checkpoint from a backup.")
    return state


def outcome_of(values: Any) -> Outcome | None:
    """Rebuild an outcome from its `asdict`; None for anything else."""
    try:
        outcome = Outcome(**values)
        numbers = list(outcome.metrics.values())
    except (TypeError, AttributeError):
        return None
    words = isinstance(outcome.kept, str) and isinstance(outcome.reason, str)
    return outcome if words and type(outcome.update) is int and all(map(_is_number, numbers)) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
