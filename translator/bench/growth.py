"""How the cost of training grows with lengths, vocabulary, batch and model.

Every figure comes from a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from translator.bench.fresh_process import in_fresh_process
from translator.config.options import RunConfig
from translator.data.batching import Batch, collate
from translator.model.attention import MultiHeadAttention
from translator.model.transformer import Transformer
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision, resolve_device
from translator.runtime.memory import peak_memory
from translator.text.tokenizer import EOS_ID
from translator.training.updater import Updater

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
VOCABULARIES = (4000, 8000, 16_000, 32_000, 64_000)
BATCHES = (512, 1024, 2048, 4096, 8192, 16_384)
DEPTHS = (1, 2, 4, 8)
WIDTHS = (128, 256, 512, 1024)
# Tokens each side, where a table has a windowed half.
WINDOW = 64
# What is not varied: tokens in a sentence and in a batch, of source and of target, and pieces in the vocabulary.
USUAL_LENGTH, USUAL_BATCH, USUAL_VOCABULARY = 32, 4096, 8000
WARM_UP_STEPS, TIMED_STEPS = 2, 5

Table = Iterator[list[str]]  # the heading first
LENGTH_HEADING = ["tokens in a sentence", "tokens/s", "GiB", f"tokens/s, window of {WINDOW}", f"GiB, window of {WINDOW}"]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a training step, medians of several."""

    tokens_per_second: float  # of target
    memory: float  # GiB at the peak, beyond what the process held before it had a model

    @property
    def cells(self) -> list[str]:
        return [f"{self.tokens_per_second:,.0f}", f"{self.memory:.2f}"]


# Each table's rows come as they are measured. `config` says all that is not varied.


def length_table(config: RunConfig) -> Table:
    windowed = _with_model(config, encoder_window=WINDOW, decoder_window=WINDOW)
    yield LENGTH_HEADING
    for length in LENGTHS:
        yield [f"{length:,}", *_training_cells(config, length=length), *_training_cells(windowed, length=length)]


def attention_table(config: RunConfig) -> Table:
    """One layer of self-attention alone: the decoder of the table above attends to the whole source besides."""
    yield LENGTH_HEADING
    for length in LENGTHS:
        costs = (in_fresh_process(attention_cost, config, length=length, window=window) for window in (None, WINDOW))
        yield [f"{length:,}", *(cell for cost in costs for cell in cost.cells)]


def vocabulary_table(config: RunConfig) -> Table:
    yield ["pieces", "tokens/s", "GiB"]
    for pieces in VOCABULARIES:
        yield [f"{pieces:,}", *_training_cells(config, vocabulary=pieces)]


def batch_table(config: RunConfig) -> Table:
    yield ["target tokens in a batch", "tokens/s", "GiB"]
    for tokens in BATCHES:
        yield [f"{tokens:,}", *_training_cells(config, tokens=tokens)]


def depth_table(config: RunConfig) -> Table:
    yield ["layers of encoder, and of decoder", "tokens/s", "GiB"]
    for layers in DEPTHS:
        yield [f"{layers}", *_training_cells(_with_model(config, encoder_layers=layers, decoder_layers=layers))]


def width_table(config: RunConfig) -> Table:
    yield ["d_model, a quarter of d_ff", "tokens/s", "GiB"]
    for width in WIDTHS:
        yield [f"{width:,}", *_training_cells(_with_model(config, d_model=width, d_ff=4 * width))]


TABLES: dict[str, Callable[[RunConfig], Table]] = {
    "length": length_table, "attention": attention_table, "vocabulary": vocabulary_table, "batch": batch_table,
    "depth": depth_table, "width": width_table}


# What the processes do


def training_cost(config: RunConfig, *, length: int, tokens: int, vocabulary: int) -> Cost:
    """The cost of training on random sentences of `length` tokens a side, `tokens` a batch, without padding."""
    def make_step(device: torch.device, precision: Precision) -> Callable[[], float]:
        model = Transformer(config.model, vocabulary, vocabulary).to(device)
        updater = Updater(model, config.optim, config.train, precision=precision)
        batch = _random_batch(tokens // length, length, vocabulary)
        return lambda: updater.step([batch], config.optim.lr).loss

    return _cost_of(make_step, config, tokens // length * length)


def attention_cost(config: RunConfig, *, length: int, window: int | None) -> Cost:
    """The cost of one layer of causal self-attention, forward and backward."""
    def make_step(device: torch.device, precision: Precision) -> Callable[[], float]:
        attention = MultiHeadAttention(config.model.d_model, config.model.num_heads, causal=True, window=window).to(device)
        x = torch.randn(USUAL_BATCH // length, length, config.model.d_model, device=device, requires_grad=True)

        def step() -> float:
            with precision.autocast(device):
                total = attention(x)[0].sum()
            total.backward()
            return float(total.detach())  # reading a number waits for the device

        return step

    return _cost_of(make_step, config, USUAL_BATCH)


def _cost_of(
    make_step: Callable[[torch.device, Precision], Callable[[], float]], config: RunConfig, tokens: int
) -> Cost:
    """The cost of a step on so many tokens, and the memory of making it too."""
    tune_cpu(training=True)
    device = resolve_device(config.device)
    precision = Precision.resolve(config.precision, device)
    before = peak_memory(device)
    torch.manual_seed(config.seed)
    step = make_step(device, precision)
    seconds = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return Cost(tokens / statistics.median(seconds[WARM_UP_STEPS:]), peak_memory(device) - before)


def _random_batch(sentences: int, length: int, vocabulary: int) -> Batch:
    ids = np.random.default_rng(0).integers(EOS_ID + 1, vocabulary, (2, sentences, length))
    ids[:, :, -1] = EOS_ID
    return collate(ids[0].tolist(), ids[1].tolist())


def _training_cells(
    config: RunConfig, *, length: int = USUAL_LENGTH, tokens: int = USUAL_BATCH, vocabulary: int = USUAL_VOCABULARY
) -> list[str]:
    return in_fresh_process(training_cost, config, length=length, tokens=tokens, vocabulary=vocabulary).cells


def _with_model(config: RunConfig, **options: Any) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **options))
