"""Where a training stands and what it ended with, as its run folder tells."""

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
    """Where a training stands; with weights and optimizer, all it takes to go on."""

    update: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    tokens: int = 0  # of target, in all updates
    seconds: float = 0.0
    skipped: int = 0  # updates whose gradient was not finite in fp16
    scaler: dict[str, Any] = field(default_factory=dict)  # fp16's
    divergence: dict[str, Any] = field(default_factory=dict)  # what the loss was like
    unlogged: dict[str, Any] = field(default_factory=dict)  # of the updates since the last line of measurements
    validations: list[Validation] = field(default_factory=list)
    recorded: dict[str, int] = field(default_factory=dict)  # bytes of the files of measurements


@dataclass
class Unlogged:
    """Sums over the updates since the last line of measurements, which tells their means."""

    updates: int = 0
    tokens: int = 0  # of target
    seconds: float = 0.0
    loss: float = 0.0  # of all tokens
    nll: float = 0.0  # of all tokens
    padding: float = 0.0  # each update's share

    def add(self, *, tokens: int, seconds: float, loss: float, nll: float, padding: float) -> None:
        """One update, its losses a token."""
        self.updates += 1
        self.tokens += tokens
        self.seconds += seconds
        self.loss += loss * tokens
        self.nll += nll * tokens
        self.padding += padding


@dataclass(frozen=True)
class Outcome:
    """What a training ended with."""

    update: int
    kept: str  # which weights, in words
    metrics: Metrics  # theirs, on the validation split
    reason: str  # why training stopped

    def surpasses(self, metrics: Metrics, metric: str) -> bool:
        """Whether its weights are better by this metric than those of other metrics; not where it does not tell."""
        return metric in self.metrics and better(metric, self.metrics[metric], metrics[metric])


def state_of(values: Any, where: Path, metric: str) -> TrainingState:
    """The state that `asdict` made these of; UserError where they are something else."""
    try:
        state = TrainingState(**values)
        counts = [state.update, state.epoch, state.batch, state.tokens, state.skipped]
        counts += [validation["update"] for validation in state.validations]
        counts += state.recorded.values()
        numbers = [state.seconds, *state.scaler.values(), *asdict(Unlogged(**state.unlogged)).values()]
        numbers += [validation[name] for validation in state.validations for name in (metric, "loss")]
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where}: state.json is of another release of the translator: {error}") from error
    counted = all(type(count) is int and 0 <= count < 2**63 for count in counts)
    if not (counted and all(map(_is_number, numbers)) and 0 <= state.seconds < 2**63):
        raise UserError(f"{where}: state.json holds values that no training writes; put a copy there to go on")
    return state


def outcome_of(values: Any) -> Outcome | None:
    """The outcome that `asdict` made these of; None where they are something else."""
    try:
        outcome = Outcome(**values)
        numbers = list(outcome.metrics.values())
    except (TypeError, AttributeError):
        return None
    words = isinstance(outcome.kept, str) and isinstance(outcome.reason, str)
    return outcome if words and type(outcome.update) is int and all(map(_is_number, numbers)) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
