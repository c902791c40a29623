"""Estimate, before the first update, how many a training makes and how long they take."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from translator.data.preparation import Corpus
from translator.runtime.console import log
from translator.runtime.distributed import world_size
from translator.training.trainer import Trainer

TIMED_BATCHES = 4  # of an update, in each process: train.accumulation may be large
# For train.validate_every=null: validations of a short training, and the fewest of one that is limited in minutes.
VALIDATIONS, FEWEST_VALIDATIONS = 20, 4
MINUTES_BETWEEN = 2.5
MOST_BETWEEN = 500  # updates


@dataclass(frozen=True)
class Plan:
    """What is left up to the nearest limit."""

    updates: int
    seconds: float  # per update
    by_clock: bool  # the nearest limit is train.max_minutes


def time_update(trainer: Trainer) -> float:
    """Return the seconds that a typical update takes, after one of the largest batches: if those fit, all do.

    These updates have a learning rate of 0, and the optimizers forget them.
    """
    updater, cursor = trainer.updater, trainer.cursor
    # On the CPU: a resumed training would need twice the GPU's memory for it.
    remembered = {name: tensor.to("cpu", copy=True) for name, tensor in updater.state().items()}
    scaler = updater.scaler.state_dict()
    largest, typical = cursor.source.of_sizes(trainer.state.epoch, 1.0, 0.5)
    own = math.ceil(min(cursor.batches_of_update, cursor.batches_per_epoch) / world_size())
    timed = min(own, TIMED_BATCHES)
    set_up = 2 if updater.device.type == "cuda" else 1  # the second captures a CUDA graph
    for batch in (largest, *[typical] * set_up, typical):
        start = time.perf_counter()
        updater.step([batch] * timed, 0.0)
        seconds = time.perf_counter() - start
    updater.load_state(remembered)
    updater.scaler.load_state_dict(scaler)
    return seconds * own / timed


def plan_of(trainer: Trainer) -> Plan:
    """Time an update, and count those up to the nearest limit."""
    train, done = trainer.config.train, trainer.state
    seconds = time_update(trainer)
    left = {
        "updates": train.max_updates and train.max_updates - done.update,
        "epochs": train.max_epochs and train.max_epochs * trainer.cursor.updates_per_epoch - done.update,
        "minutes": train.max_minutes and (train.max_minutes * 60 - done.seconds) / seconds}
    updates, limit = min((count, limit) for limit, count in left.items() if count is not None)
    return Plan(max(0, round(updates)), seconds, by_clock=limit == "minutes")


def validation_interval(updates: int, minutes: float | None) -> int:
    """Return `train.validate_every` for a plan of this many updates: 20 validations, and at least one every 500 updates.

    minutes: the limit that ends the training, if it is one of time. Validations use it up too, so they are rarer: 2.5 minutes
    apart, but no fewer than four.
    """
    validations = VALIDATIONS if minutes is None else min(VALIDATIONS, max(FEWEST_VALIDATIONS, minutes / MINUTES_BETWEEN))
    return max(1, min(MOST_BETWEEN, math.ceil(updates / validations)))


def log_plan(plan: Plan, trainer: Trainer, corpus: Corpus) -> None:
    """Log the model's size, an epoch's, and the time that training takes."""
    updater, per_epoch, every = trainer.updater, trainer.cursor.updates_per_epoch, trainer.config.train.interval
    parameters = sum(p.numel() for p in trainer.model.parameters())
    tokens = corpus.report["splits"]["train"]["target_tokens"]
    pieces = " and ".join(f"{len(side):,}" for side in dict.fromkeys((corpus.source_tokenizer, corpus.target_tokenizer)))
    validation = f"{'with' if plan.by_clock else 'and'} a validation every {f'{every:,} updates' if every > 1 else 'update'}"
    log(f"model      {parameters:,} parameters, {pieces} pieces, on {updater.device.type} in "
        f"{updater.precision}\n"
        f"training   {len(corpus.train):,} sentences, {tokens:,} target tokens, {tokens / per_epoch:,.0f} an update, "
        f"{per_epoch:,} update{'s' * (per_epoch != 1)} {'an epoch' if trainer.cursor.unit == 'epoch' else 'a window'}\n"
        f"plan       about {plan.updates:,} updates, {plan.updates / per_epoch:.1f} {trainer.cursor.unit}s, in "
        f"{plan.updates * plan.seconds / 60:.0f} minutes at {plan.seconds:.2f} s an update, {validation}")
    if trainer.state.update:
        log(f"resuming   from update {trainer.state.update:,}")
