"""Measure how cost and quality grow: `python scripts/bench/growth.py [update] [learning] train.max_minutes=5`.

update: cost of an update by model and length of sentences. learning: validation scores by size of the training set.
Both if none is named. Tables in Markdown on stdout. Overrides are scripts/train.py's.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from training import machine, options_of_training

from translator.config.options import RunConfig
from translator.data.batching import collate
from translator.data.preparation import prepare
from translator.data.tatoeba import fetch_default
from translator.model.transformer import Transformer
from translator.runs.training_state import Outcome
from translator.runtime.console import require_stdout
from translator.runtime.device import Precision, peak_memory, resolve_device, tune_cpu
from translator.runtime.errors import UserError
from translator.text.tokenizer import EOS_ID
from translator.training.train import train
from translator.training.updater import Updater

MODELS = ("tiny", "small", "base", "big")
LENGTHS = (32, 128, 512, 2048)  # divisors of BATCH
BATCH = 4096  # target tokens
VOCABULARY = 8000
WARM_UP_UPDATES, TIMED_UPDATES = 2, 5
PAIRS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
Table = Iterator[list[str]]  # the heading first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help=f"tables ({', '.join(TABLES)}), and options of training")
    words = parser.parse_args().words
    require_stdout("the tables", "Redirect it to a file: > FILE.")
    for word in words:
        if word not in TABLES and "=" not in word:
            raise UserError(f"{word}: no such table. Choose among {', '.join(TABLES)}.")
    overrides = [word for word in words if word not in TABLES]
    print(", ".join(f"{name} {value}" for name, value in machine(options_of_training(overrides)).items()))
    for name in [word for word in words if word in TABLES] or TABLES:
        rows = TABLES[name](overrides)
        heading = next(rows)
        print(f"\n## {name.capitalize()}\n\n| {' | '.join(heading)} |\n| {' | '.join(['---'] * len(heading))} |")
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


def update_table(overrides: Sequence[str]) -> Table:
    yield ["model", "tokens in a sentence", "tokens/s", "s an update", "GiB"]
    for model in MODELS:
        config = options_of_training([f"model={model}", *overrides])
        for length in LENGTHS:
            seconds, memory = in_fresh_process(update_cost, config, length)
            yield [model, f"{length:,}", f"{BATCH / seconds:,.0f}", f"{seconds:.3f}", f"{memory:.2f}"]


def update_cost(config: RunConfig, length: int) -> tuple[float, float]:
    """Return the seconds of an update, the median of several, and the GiB that it and the model need at the peak.

    On random sentences of `length` tokens a side, BATCH a batch, without padding.
    """
    tune_cpu(training=True)
    device = resolve_device(config.device)
    before = peak_memory(device)
    torch.manual_seed(config.seed)
    model = Transformer(config.model, VOCABULARY, VOCABULARY).to(device)
    updater = Updater(model, config.optim, config.train, precision=Precision.resolve(config.precision, device))
    ids = np.random.default_rng(0).integers(EOS_ID + 1, VOCABULARY, (2, BATCH // length, length))
    batch = collate(*ids.tolist())
    seconds = []
    for _ in range(WARM_UP_UPDATES + TIMED_UPDATES):
        start = time.perf_counter()
        updater.step([batch], config.optim.lr)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP_UPDATES:]), peak_memory(device) - before


def learning_table(overrides: Sequence[str]) -> Table:
    config = options_of_training(overrides)
    fetch_default(config.data.path)
    available = len(prepare(config.data, config.tokenizer, max_tokens=config.longest_pair()).train)
    yield ["pairs", "updates", "validation loss", "BLEU", "minutes"]
    for pairs in [*(pairs for pairs in PAIRS if pairs < available), available]:
        start = time.monotonic()
        outcome = in_fresh_process(learn, config, pairs)
        scores = (f"{outcome.metrics['loss']:.3f}", f"{outcome.metrics['bleu']:.2f}")
        yield [f"{pairs:,}", f"{outcome.update:,}", *scores, f"{(time.monotonic() - start) / 60:.1f}"]


def learn(config: RunConfig, pairs: int) -> Outcome:
    """Train on the first pairs of the training set, and return the end of the run."""
    with tempfile.TemporaryDirectory() as runs:
        return train(dataclasses.replace(config, runs=runs, data=dataclasses.replace(config.data, limit=pairs))).outcome


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own, so that its peak memory is that of nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


TABLES: dict[str, Callable[[Sequence[str]], Table]] = {"update": update_table, "learning": learning_table}


if __name__ == "__main__":
    with one_line_errors():
        main()
