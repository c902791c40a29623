"""How cost grows: of training with lengths, vocabulary, batch and model, of starting with the corpus (floor 8).

Every figure comes from a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from translator.attention import MultiHeadAttention
from translator.batching import Batch, BatchSource, collate
from translator.config import RunConfig
from translator.data import load_split, prepare
from translator.device import autocast, peak_memory, resolve_device, resolve_precision, tune_cpu
from translator.model import Transformer
from translator.tokenizer import EOS_ID
from translator.trainer import new_model
from translator.updater import Updater

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
VOCABULARIES = (4000, 8000, 16_000, 32_000, 64_000)
BATCHES = (512, 1024, 2048, 4096, 8192, 16_384)
DEPTHS = (1, 2, 4, 8)
WIDTHS = (128, 256, 512, 1024)
PAIRS = (30_000, 300_000, 3_000_000, 10_000_000)
PREPARED, WORKERS = (1_000_000, 10_000_000), (1, 2)
# Tokens each side, where a table has a windowed half.
WINDOW = 64
# What is not varied: tokens in a sentence and in a batch, of source and of target, and pieces in the vocabulary.
USUAL_LENGTH, USUAL_BATCH, USUAL_VOCABULARY = 32, 4096, 8000
WARM_UP_STEPS, TIMED_STEPS = 2, 5
# Of made-up text: words known, and the words in a sentence.
LEXICON, SHORTEST, LONGEST = 50_000, 4, 24

Result = TypeVar("Result")
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


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Of a corpus."""

    seconds: float
    core_seconds: float  # of all processes and threads
    memory: float  # GiB that all processes held together at the peak


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
        costs = (_in_fresh_process(attention_cost, config, length=length, window=window) for window in (None, WINDOW))
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


def corpus_table(config: RunConfig, sizes: Sequence[int] = PAIRS) -> Table:
    yield ["pairs", "preparation: s", "its GiB", "second start, to the end of the first update: s", "its GiB"]
    for pairs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = tuple(map(str, write_corpus(Path(folder), pairs)))
            made_up = _with_data(config, files, f"{folder}/cache", workers=1)
            first = _in_fresh_process(first_start, made_up)
            second, second_peak = _in_fresh_process(second_start, made_up, time.time())
        yield [f"{pairs:,}", f"{first.seconds:,.0f}", f"{first.memory:.2f}", f"{second:.1f}", f"{second_peak:.2f}"]


def preparation_table(config: RunConfig, sizes: Sequence[int] = PREPARED) -> Table:
    """Of the train split of `config`, repeated with variations."""
    yield ["pairs", "processes", "s", "pairs/s", "pairs/s of a core's time", "GiB, all processes"]
    corpus = load_split(config.data, "train")
    for pairs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = tuple(map(str, repeat_corpus(Path(folder), corpus, pairs)))
            for workers in WORKERS:
                with tempfile.TemporaryDirectory(dir=folder) as cache:
                    cost = _in_fresh_process(first_start, _with_data(config, files, cache, workers=workers))
                yield [f"{pairs:,}", f"{workers}", f"{cost.seconds:,.0f}", f"{pairs / cost.seconds:,.0f}",
                       f"{pairs / cost.core_seconds:,.0f}", f"{cost.memory:.2f}"]


TABLES: dict[str, Callable[[RunConfig], Table]] = {
    "length": length_table, "attention": attention_table, "vocabulary": vocabulary_table, "batch": batch_table,
    "depth": depth_table, "width": width_table, "corpus": corpus_table, "preparation": preparation_table}


# What the processes do


def training_cost(config: RunConfig, *, length: int, tokens: int, vocabulary: int) -> Cost:
    """The cost of training on random sentences of `length` tokens a side, `tokens` a batch, without padding."""
    def make_step(device: torch.device, precision: torch.dtype) -> Callable[[], Tensor]:
        model = Transformer(config.model, vocabulary, vocabulary).to(device)
        updater = Updater(model, config.optim, config.train, precision=precision)
        batch = _random_batch(tokens // length, length, vocabulary)
        return lambda: updater.step([batch], config.optim.lr).loss

    return _cost_of(make_step, config, tokens // length * length)


def attention_cost(config: RunConfig, *, length: int, window: int | None) -> Cost:
    """The cost of one layer of causal self-attention, forward and backward."""
    def make_step(device: torch.device, precision: torch.dtype) -> Callable[[], Tensor]:
        attention = MultiHeadAttention(config.model.d_model, config.model.num_heads, causal=True, window=window).to(device)
        x = torch.randn(USUAL_BATCH // length, length, config.model.d_model, device=device, requires_grad=True)

        def step() -> Tensor:
            with autocast(device, precision):
                total = attention(x)[0].sum()
            total.backward()
            return total.detach()

        return step

    return _cost_of(make_step, config, USUAL_BATCH)


def first_start(config: RunConfig) -> Preparation:
    """What the preparation of a corpus takes."""
    start, start_of_cores = time.perf_counter(), time.process_time()
    with _watched_memory() as peak:
        prepare(config.data, config.tokenizer, max_tokens=config.train.max_tokens)
    seconds, core_seconds = time.perf_counter() - start, time.process_time() - start_of_cores
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory = max(peak.gib, peak_memory(torch.device("cpu")))
    return Preparation(seconds, core_seconds + workers.ru_utime + workers.ru_stime, memory)


def second_start(config: RunConfig, launched: float) -> tuple[float, float]:
    """Seconds from `launched`, by time.time, to the end of the first update on a prepared corpus, and the peak in GiB."""
    tune_cpu()
    device = resolve_device(config.device)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.train.max_tokens)
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    batches = BatchSource(corpus.train, tokenizers, max_tokens=config.train.max_tokens, seed=config.seed)
    updater = Updater(
        new_model(config, corpus).to(device), config.optim, config.train,
        precision=resolve_precision(config.precision, device))
    float(updater.step([batches.batch(0, 0)], config.optim.lr).loss)
    return time.time() - launched, peak_memory(torch.device("cpu"))


def write_corpus(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Two text files of so many made-up sentences, whose words are as unequally frequent as those of a language."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, size)) for size in rng.integers(2, 10, LEXICON)]
    files = folder / "made-up.src", folder / "made-up.tgt"
    with files[0].open("w", encoding="utf-8") as source, files[1].open("w", encoding="utf-8") as target:
        for first in range(0, pairs, 100_000):
            lengths = rng.integers(SHORTEST, LONGEST, min(100_000, pairs - first))
            for file in (source, target):
                file.writelines(_sentences(rng, words, lengths))
    return files


def repeat_corpus(folder: Path, corpus: Dataset, pairs: int) -> tuple[Path, Path]:
    """Two text files of so many pairs: those of a corpus, then again and again, each time with another number behind them."""
    files = folder / "repeated.src", folder / "repeated.tgt"
    for file, side in zip(files, ("source", "target"), strict=True):
        texts = list(corpus[side])
        with file.open("w", encoding="utf-8") as lines:
            for number, first in enumerate(range(0, pairs, len(texts))):
                end = f" {number}\n" if number else "\n"
                lines.writelines(text + end for text in texts[: pairs - first])
    return files


def _sentences(rng: np.random.Generator, words: list[str], lengths: np.ndarray) -> Iterator[str]:
    """Lines of so many Zipf-distributed words each."""
    numbers = np.minimum(rng.zipf(1.2, int(lengths.sum())), len(words)) - 1
    start = 0
    for length in lengths:
        yield " ".join(words[n] for n in numbers[start : start + length]) + "\n"
        start += length


def _cost_of(
    make_step: Callable[[torch.device, torch.dtype], Callable[[], Tensor]], config: RunConfig, tokens: int
) -> Cost:
    """The cost of a step on so many tokens, and the memory of making it too."""
    tune_cpu()
    device = resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    before = peak_memory(device)
    torch.manual_seed(config.seed)
    step = make_step(device, precision)
    seconds = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        start = time.perf_counter()
        float(step())  # reading a number waits for the device
        seconds.append(time.perf_counter() - start)
    return Cost(tokens / statistics.median(seconds[WARM_UP_STEPS:]), peak_memory(device) - before)


@contextmanager
def _watched_memory() -> Iterator[SimpleNamespace]:
    """Inside, `gib` rises to the most that this process and its workers hold together, where /proc tells."""
    peak, done, me = SimpleNamespace(gib=0.0), threading.Event(), os.getpid()

    def watch() -> None:
        while not done.wait(0.1):
            with suppress(OSError):  # one has just ended, or there is no /proc
                all_of_us = [me, *map(int, Path(f"/proc/{me}/task/{me}/children").read_text().split())]
                pages = sum(int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in all_of_us)
                peak.gib = max(peak.gib, pages * resource.getpagesize() / 2**30)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _random_batch(sentences: int, length: int, vocabulary: int) -> Batch:
    ids = np.random.default_rng(0).integers(EOS_ID + 1, vocabulary, (2, sentences, length))
    ids[:, :, -1] = EOS_ID
    return collate(ids[0].tolist(), ids[1].tolist())


def _training_cells(
    config: RunConfig, *, length: int = USUAL_LENGTH, tokens: int = USUAL_BATCH, vocabulary: int = USUAL_VOCABULARY
) -> list[str]:
    return _in_fresh_process(training_cost, config, length=length, tokens=tokens, vocabulary=vocabulary).cells


def _with_model(config: RunConfig, **options: Any) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **options))


def _with_data(config: RunConfig, train: tuple[str, ...], cache: str, *, workers: int) -> RunConfig:
    data = dataclasses.replace(
        config.data, path=None, train=train, validation=None, test=None, cache=cache, workers=workers)
    return dataclasses.replace(config, data=data)


def _in_fresh_process(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # its processes may have workers of their own
        return pool.submit(function, *arguments, **options).result()
