"""Choose weights, and the end of a training, by its validations."""

from __future__ import annotations

from collections.abc import Sequence

from translator.config.options import TrainConfig
from translator.metrics.scores import better
from translator.runs.training_state import Validation


def ranked(validations: Sequence[Validation], train: TrainConfig) -> list[Validation]:
    """Sort validations, best first by `train.metric`, then by loss."""
    sign = 1 if better(train.metric, 0, 1) else -1
    return sorted(validations, key=lambda v: (sign * v[train.metric], v["loss"]))


def to_average(validations: Sequence[Validation], train: TrainConfig) -> list[int]:
    """Return the updates whose weights `train.average` averages."""
    if train.average == "none":
        return []
    ordered = ranked(validations, train) if train.average == "best" else validations[::-1]
    return [v["update"] for v in ordered[: train.average_count]]


def to_keep(validations: Sequence[Validation], train: TrainConfig) -> list[int]:
    """Return the updates whose weights the end may need, also after resuming from the checkpoint before this one."""
    return [
        update for known in (validations, validations[:-1])
        for update in (*to_average(known, train), *(best["update"] for best in ranked(known, train)[:1]))]


def fraction_done(train: TrainConfig, *, epochs: float, updates: int, minutes: float) -> float:
    """Return the fraction of a training that is done, 0 to 1, by the nearest limit."""
    done = [
        value / limit
        for value, limit in ((epochs, train.max_epochs), (updates, train.max_updates), (minutes, train.max_minutes))
        if limit is not None
    ]
    return min(1.0, max(done))


def stop_reason(train: TrainConfig, fraction: float, validations: Sequence[Validation]) -> str:
    """Return why training is over; empty while it is not."""
    if fraction >= 1:
        return "the limit set in train.max_epochs, train.max_updates or train.max_minutes"
    if train.patience is not None and validations:
        best = ranked(validations, train)[0]["update"]
        if sum(v["update"] > best for v in validations) >= train.patience:
            return f"no better {train.metric} in {train.patience} validations"
    return ""
