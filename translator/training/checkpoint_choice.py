"""Which weights of a training to keep, and when more of it is of no use, by its validations."""

from __future__ import annotations

from collections.abc import Sequence

from translator.config.options import TrainConfig
from translator.metrics.scores import better
from translator.runs.training_state import Validation


def ranked(validations: Sequence[Validation], train: TrainConfig) -> list[Validation]:
    """The validations, best first by `train.metric`; of equals that of lower loss."""
    sign = 1 if better(train.metric, 0, 1) else -1
    return sorted(validations, key=lambda v: (sign * v[train.metric], v["loss"]))


def to_average(validations: Sequence[Validation], train: TrainConfig) -> list[int]:
    """The updates whose weights `train.average` asks to average."""
    if train.average == "none":
        return []
    ordered = ranked(validations, train) if train.average == "best" else validations[::-1]
    return [v["update"] for v in ordered[: train.average_count]]


def to_keep(validations: Sequence[Validation], train: TrainConfig) -> list[int]:
    """The updates whose weights the end of a training may ask for, now or gone on with from the checkpoint before this one."""
    return [
        update for known in (validations, validations[:-1])  # as each of the two knows them
        for update in (*to_average(known, train), *(best["update"] for best in ranked(known, train)[:1]))]


def fraction_done(train: TrainConfig, *, epochs: float, updates: int, minutes: float) -> float:
    """How much of a training is done, by the limit that is nearest: 0 to 1."""
    done = [
        value / limit
        for value, limit in ((epochs, train.max_epochs), (updates, train.max_updates), (minutes, train.max_minutes))
        if limit is not None
    ]
    return min(1.0, max(done))


def out_of_patience(validations: Sequence[Validation], train: TrainConfig) -> bool:
    """Whether the last `train.patience` validations brought no better metric."""
    if train.patience is None or not validations:
        return False
    best = ranked(validations, train)[0]["update"]
    return sum(v["update"] > best for v in validations) >= train.patience
