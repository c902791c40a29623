"""Measure how cost grows: `python scripts/bench/growth.py length vocabulary model=small`. Overrides are scripts/train.py's.

Tables in Markdown on stdout, of fresh models. All tables if none is named; those of corpora take by far the longest.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import corpus
import numpy as np
import torch
from common import in_fresh_process, machine, options_of_training

from translator.config.options import RunConfig
from translator.data.batching import collate
from translator.data.tatoeba import fetch_default
from translator.model.attention import MultiHeadAttention
from translator.model.transformer import Transformer
from translator.runtime.console import log, require_stdout
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision, resolve_device
from translator.runtime.errors import UserError
from translator.runtime.memory import peak_memory
from translator.text.tokenizer import EOS_ID
from translator.training.updater import Updater

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WINDOW = 64  # tokens each side
BATCH = 4096  # target tokens, where not varied
WARM_UP_STEPS, TIMED_STEPS = 2, 5
Table = Iterator[list[str]]  # the heading first
Step = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help=f"tables ({', '.join(TABLES)}), and options of training")
    words = parser.parse_args().words
    require_stdout("the tables", "Redirect it to a file: > FILE.")
    for word in words:
        if word not in TABLES and "=" not in word:
            raise UserError(f"{word}: no such table; there are {', '.join(TABLES)}")
    config = options_of_training([word for word in words if word not in TABLES])
    print(", ".join(f"{name} {value}" for name, value in machine(config).items()))
    tables = [word for word in words if word in TABLES] or list(TABLES)
    if set(tables) & set(corpus.TABLES):
        fetch_default(config.data.path)
    for name in tables:
        log(f"measuring how cost grows with {name}")
        for number, row in enumerate(TABLES[name](config)):
            if number == 0:
                print(f"\n## {name.capitalize()}\n")
            print(f"| {' | '.join(row)} |", flush=True)
            if number == 0:
                print(f"| {' | '.join(['---'] * len(row))} |")


def windows_table(measure: Callable[..., list[str]], config: RunConfig) -> Table:
    """By length, with full attention and with windows."""
    yield ["tokens in a sentence", "tokens/s", "GiB", f"tokens/s, window of {WINDOW}", f"GiB, window of {WINDOW}"]
    windowed = with_model(config, encoder_window=WINDOW, decoder_window=WINDOW)
    for length in LENGTHS:
        yield [f"{length:,}", *measure(config, length=length), *measure(windowed, length=length)]


def training_table(heading: str, values: tuple[int, ...], changed: str, config: RunConfig) -> Table:
    """By the values of one quantity."""
    yield [heading, "tokens/s", "GiB"]
    for value in values:
        model = {
            "depth": {"encoder_layers": value, "decoder_layers": value}, "width": {"d_model": value, "d_ff": 4 * value}}
        options = {} if changed in model else {changed: value}
        yield [f"{value:,}", *training_cost(with_model(config, **model.get(changed, {})), **options)]


def with_model(config: RunConfig, **options: Any) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **options))


def training_cost(config: RunConfig, *, length: int = 32, tokens: int = BATCH, vocabulary: int = 8000) -> list[str]:
    """Measure training on random sentences of `length` tokens a side, `tokens` a batch, without padding."""
    return in_fresh_process(cost, config, training_step, tokens // length, length, vocabulary=vocabulary)


def attention_cost(config: RunConfig, *, length: int) -> list[str]:
    """Measure one layer of causal self-attention: a decoder also attends to the whole source."""
    return in_fresh_process(cost, config, attention_step, BATCH // length, length)


def cost(config: RunConfig, make_step: Callable[..., Step], sentences: int, length: int, **options: Any) -> list[str]:
    """Return target tokens a second, the median of several steps, and the GiB that the model and a step need at the peak."""
    tune_cpu(training=True)
    device = resolve_device(config.device)
    before = peak_memory(device)
    torch.manual_seed(config.seed)
    step = make_step(config, device, sentences, length, **options)
    seconds = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    rate = sentences * length / statistics.median(seconds[WARM_UP_STEPS:])
    return [f"{rate:,.0f}", f"{peak_memory(device) - before:.2f}"]


def training_step(config: RunConfig, device: torch.device, sentences: int, length: int, *, vocabulary: int) -> Step:
    """Return an update of a fresh model on random sentences."""
    model = Transformer(config.model, vocabulary, vocabulary).to(device)
    updater = Updater(model, config.optim, config.train, precision=Precision.resolve(config.precision, device))
    ids = np.random.default_rng(0).integers(EOS_ID + 1, vocabulary, (2, sentences, length))
    ids[:, :, -1] = EOS_ID
    batch = collate(ids[0].tolist(), ids[1].tolist())
    return lambda: updater.step([batch], config.optim.lr)


def attention_step(config: RunConfig, device: torch.device, sentences: int, length: int) -> Step:
    """Return a forward and backward pass of the layer."""
    window = config.model.windows("decoder")[0]
    attention = MultiHeadAttention(config.model.d_model, config.model.num_heads, causal=True, window=window).to(device)
    x = torch.randn(sentences, length, config.model.d_model, device=device, requires_grad=True)

    def step() -> float:
        with Precision.resolve(config.precision, device).autocast(device):
            total = attention(x)[0].sum()
        total.backward()
        return float(total.detach())  # reading a number waits for the device

    return step


TABLES: dict[str, Callable[[RunConfig], Table]] = {
    "length": partial(windows_table, training_cost),
    "attention": partial(windows_table, attention_cost),
    "vocabulary": partial(training_table, "pieces", (4000, 8000, 16_000, 32_000, 64_000), "vocabulary"),
    "batch": partial(training_table, "target tokens in a batch", (512, 1024, 2048, 4096, 8192, 16_384), "tokens"),
    "depth": partial(training_table, "layers of encoder, and of decoder", (1, 2, 4, 8), "depth"),
    "width": partial(training_table, "d_model, a quarter of d_ff", (128, 256, 512, 1024), "width"),
} | corpus.TABLES


if __name__ == "__main__":
    with one_line_errors():
        main()
