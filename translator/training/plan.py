"""Measure updates before training: the largest batch that fits in memory, and how long the training takes."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from translator.config.options import RunConfig
from translator.data.batching import BatchSource
from translator.data.preparation import Corpus
from translator.model.transformer import Transformer
from translator.runtime.console import log
from translator.runtime.device import OutOfMemory, Precision, memory_of, peak_memory
from translator.runtime.distributed import world_size
from translator.runtime.errors import UserError
from translator.training.stages import idle_corpora
from translator.training.teacher import Teacher
from translator.training.trainer import Trainer
from translator.training.updater import Updater

# For train.batch_tokens=auto: the most tokens, and the least batches of an epoch, if its longest pair allows: with fewer
# updates a model learns less. The fraction of the memory that a trial may take: batches of other shapes leave gaps.
MOST_TOKENS, LEAST_BATCHES, MEMORY_FRACTION = 2**17, 100, 0.8
TIMED_BATCHES = 4  # of an update, in each process: train.accumulation may be large
# For train.validate_every=null: validations of a short training, and the fewest of one that is limited in minutes.
VALIDATIONS, FEWEST_VALIDATIONS = 20, 4
MINUTES_BETWEEN, MOST_UPDATES_BETWEEN = 2.5, 500


def fitting_batch_tokens(config: RunConfig, corpus: Corpus, model: Transformer, teacher: Teacher | None = None) -> int:
    """Return the largest power of two with which an update of the largest batches fits; OutOfMemory if none does."""
    if world_size() > 1:
        raise UserError("train.batch_tokens=auto: works with one process only. Run it with one, and give several the number.")
    longest = np.maximum(*(np.asarray(corpus.train.with_format("numpy")[f"{side}_length"][:]) for side in ("source", "target")))
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    device = next(model.parameters()).device
    precision = Precision.resolve(config.precision, device)

    def update_with(tokens: int) -> None:
        rows = corpus.train.select(np.flatnonzero(longest <= tokens))
        [largest] = BatchSource(rows, tokenizers, max_tokens=tokens, seed=config.seed).of_sizes(0, 1.0)
        updater = Updater(model, config.optim, config.train, precision=precision, teacher=teacher)
        for _ in range(2 if device.type == "cuda" else 1):  # the second captures a CUDA graph, which takes memory too
            updater.step([largest] * config.train.batches_of_update, 0.0)

    def fits(tokens: int) -> bool:
        try:
            update_with(tokens)
        except OutOfMemory:
            if longest.min() > tokens // 2:  # no pair would be left
                raise
            return False
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        return True

    tokens = 2 ** math.ceil(math.log2(max(longest.max(), 2)))
    while not fits(tokens):
        tokens //= 2
    most, memory = min(MOST_TOKENS, int(longest.sum()) // LEAST_BATCHES), MEMORY_FRACTION * memory_of(device)
    while 2 * tokens <= most and 2 * peak_memory(device) * 2**30 <= memory and fits(2 * tokens):
        tokens *= 2
    return tokens


@dataclass(frozen=True)
class Plan:
    """What is left up to the nearest limit."""

    of_stages: tuple[int, ...]  # updates of each stage
    epochs: float
    seconds: float  # per update
    by_clock: bool  # the nearest limit is train.max_minutes

    @property
    def updates(self) -> int:
        return sum(self.of_stages)


def time_update(trainer: Trainer) -> float:
    """Return the seconds of a typical update, after one of the largest batches: if those fit, all do. Nothing is learned."""
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
    """Time an update, and count those up to the nearest limit, stage after stage."""
    train, state, cursor, seconds = trainer.config.train, trainer.state, trainer.cursor, time_update(trainer)
    limits = {name: limit for name in ("updates", "epochs", "minutes") if (limit := getattr(train, f"max_{name}"))}
    done = {"updates": state.update, "epochs": cursor.epochs, "minutes": state.seconds / 60}
    counts, started = [0] * len(cursor.stages), state.earlier_epochs
    for number, stage in enumerate(cursor.stages[state.stage :], start=state.stage):
        of_update = {"updates": 1.0, "epochs": 1 / cursor.updates_per_epoch(number), "minutes": seconds / 60}
        ends = {name: min(1.0, stage.done) * limit for name, limit in limits.items()}.items()
        left = min(stage.updates - done["updates"], (started + stage.epochs - done["epochs"]) / of_update["epochs"],
                   *((end - done[name]) / of_update[name] for name, end in ends))
        counts[number] = max(0, math.ceil(left - 1e-6))  # as in training, a stage and a limit end with a whole update
        done = {name: amount + counts[number] * of_update[name] for name, amount in done.items()}
        started = done["epochs"]
    nearest = max(limits, key=lambda name: done[name] / limits[name])
    return Plan(tuple(counts), done["epochs"] - cursor.epochs, seconds, by_clock=nearest == "minutes")


def validation_interval(updates: int, minutes: float | None) -> int:
    """Return `train.validate_every`. minutes: the limit, if it is one of time: validations use it up too, so they are rarer."""
    validations = VALIDATIONS if minutes is None else min(VALIDATIONS, max(FEWEST_VALIDATIONS, minutes / MINUTES_BETWEEN))
    return max(1, min(MOST_UPDATES_BETWEEN, math.ceil(updates / validations)))


def log_plan(plan: Plan, trainer: Trainer, corpus: Corpus) -> None:
    updater, cursor, every = trainer.updater, trainer.cursor, trainer.config.train.interval
    per_epoch, pairs = cursor.updates_per_epoch(trainer.state.stage), sum(map(len, cursor.source.plan(trainer.state.epoch)))
    parameters = sum(p.numel() for p in trainer.model.parameters())
    tokens = corpus.report["splits"]["train"]["target_tokens"]
    pieces = " and ".join(f"{len(side):,}" for side in dict.fromkeys((corpus.source_tokenizer, corpus.target_tokenizer)))
    validation = f"{'with' if plan.by_clock else 'and'} a validation every {f'{every:,} updates' if every > 1 else 'update'}"
    seconds = round(plan.updates * plan.seconds)
    amount, unit = (round(seconds / 60), "minute") if seconds >= 90 else (seconds, "second")
    log(f"model      {parameters:,} parameters, {pieces} pieces, on {updater.device.type} in {updater.precision}\n"
        f"training   {len(corpus.train):,} sentences, {tokens:,} target tokens, "
        f"{tokens * pairs / len(corpus.train) / per_epoch:,.0f} an update, "
        f"{per_epoch:,} update{'s' * (per_epoch != 1)} {'an epoch' if cursor.unit == 'epoch' else 'a window'}\n"
        f"plan       about {plan.updates:,} updates, {plan.epochs:.1f} {cursor.unit}s, in "
        f"{amount:,} {unit}{'s' * (amount != 1)} at {plan.seconds:.2f} s an update, {validation}")
    for number, (stage, count) in enumerate(zip(cursor.stages, plan.of_stages, strict=True), start=1):
        if len(cursor.stages) > 1:
            over = number <= trainer.state.stage
            log(f"stage {number:<4} {stage}, " + ("over" if over else f"about {count:,} update{'s' * (count != 1)}"))
        elif stage.mix is not None:
            log(f"mix        {stage}")
        if plan.updates and not count and number > trainer.state.stage + 1:
            log(f"warning: train.stages: stage {number} is never reached. Shorten those before it, or train for longer.")
    if idle := idle_corpora(cursor.stages):
        log(f"warning: train.stages: no stage has {', '.join(idle)}. Add it to one, or remove it.")
    if trainer.state.update:
        log(f"resuming   from update {trainer.state.update:,}")
