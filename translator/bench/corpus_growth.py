"""How the cost of reading a corpus grows with its size and the processes at it.

Every figure comes from processes of its own, so that their peak memory is their own.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from translator.bench.fresh_process import Result, in_fresh_process
from translator.bench.growth import Table
from translator.config.options import RunConfig
from translator.data.batching import BatchSource
from translator.data.preparation import load_split, prepare
from translator.data.sources import SPLITS
from translator.data.stream import WindowSource
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision, resolve_device
from translator.runtime.distributed import process_group
from translator.runtime.errors import one_line
from translator.runtime.memory import peak_memory
from translator.training.trainer import new_model
from translator.training.updater import Updater

PAIRS = (30_000, 300_000, 3_000_000, 10_000_000)
PREPARED, WORKERS = (1_000_000, 10_000_000), (1, 2)
STREAMED, WINDOW = 3_000_000, 100_000
# Of made-up text: words known, and the words in a sentence.
LEXICON, SHORTEST, LONGEST = 50_000, 4, 24


@dataclasses.dataclass(frozen=True)
class Reading:
    """Of a corpus."""

    seconds: float
    core_seconds: float  # of all processes and threads
    memory: float  # GiB that all processes held together at the peak


@dataclasses.dataclass(frozen=True)
class Streaming(Reading):
    """Of a process's share of a stream."""

    resident: tuple[float, float]  # GiB after its second window, and after its last


# Each table's rows come as they are measured. `config` says all that is not varied.


def corpus_table(config: RunConfig, sizes: Sequence[int] = PAIRS) -> Table:
    yield ["pairs", "preparation: s", "its GiB", "second start, to the end of the first update: s", "its GiB"]
    for pairs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = tuple(map(str, write_corpus(Path(folder), pairs)))
            made_up = _with_data(config, files, f"{folder}/cache", workers=1)
            first = in_fresh_process(first_start, made_up)
            second, second_peak = in_fresh_process(second_start, made_up, time.time())
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
                    cost = in_fresh_process(first_start, _with_data(config, files, cache, workers=workers))
                yield [f"{pairs:,}", f"{workers}", f"{cost.seconds:,.0f}", f"{pairs / cost.seconds:,.0f}",
                       f"{pairs / cost.core_seconds:,.0f}", f"{cost.memory:.2f}"]


def stream_table(config: RunConfig, pairs: int = STREAMED, window: int = WINDOW) -> Table:
    """Of the splits of `config`, train repeated with variations, by processes as torchrun starts them that do nothing else."""
    yield ["processes", "s", "pairs/s", "pairs/s of a core's time", "GiB a process, second window", "last window", "peak"]
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Any] = {}
        for split in SPLITS:
            rows = load_split(config.data, split)
            place = Path(folder) / split
            place.mkdir()
            files[split] = tuple(map(str, repeat_corpus(place, rows, pairs if split == "train" else len(rows))))
        streamed = dataclasses.replace(
            config, data=dataclasses.replace(config.data, path=None, cache=f"{folder}/cache", window=window, **files),
            train=dataclasses.replace(config.train, max_epochs=None))
        for processes in WORKERS:
            costs = _in_processes_of_one_job(processes, stream, streamed, pairs // window)
            seconds, core_seconds = max(cost.seconds for cost in costs), sum(cost.core_seconds for cost in costs)
            memory = (max(cost.resident[0] for cost in costs), max(cost.resident[1] for cost in costs),
                      max(cost.memory for cost in costs))
            read = pairs - window
            yield [f"{processes}", f"{seconds:,.0f}", f"{read / seconds:,.0f}", f"{read / core_seconds:,.0f}",
                   *(f"{gib:.2f}" for gib in memory)]


TABLES: dict[str, Callable[[RunConfig], Table]] = {
    "corpus": corpus_table, "preparation": preparation_table, "stream": stream_table}


# What the processes do


def first_start(config: RunConfig) -> Reading:
    """What the preparation of a corpus takes."""
    start, start_of_cores = time.perf_counter(), time.process_time()
    with _watched_memory() as peak:
        prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    seconds, core_seconds = time.perf_counter() - start, time.process_time() - start_of_cores
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory = max(peak.gib, peak_memory(torch.device("cpu")))
    return Reading(seconds, core_seconds + workers.ru_utime + workers.ru_stime, memory)


def second_start(config: RunConfig, launched: float) -> tuple[float, float]:
    """Seconds from `launched`, by time.time, to the end of the first update on a prepared corpus, and the peak in GiB."""
    tune_cpu(training=True)
    device = resolve_device(config.device)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    batches = BatchSource(corpus.train, tokenizers, max_tokens=config.train.max_tokens, seed=config.seed)
    updater = Updater(
        new_model(config, corpus, device), config.optim, config.train,
        precision=Precision.resolve(config.precision, device))
    updater.step([batches.batch(0, 0)], config.optim.lr)
    return time.time() - launched, peak_memory(torch.device("cpu"))


def stream(config: RunConfig, windows: int) -> Streaming:
    """What so many windows of a stream take after the first, which pays for set-up."""
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    source = WindowSource(
        config.data, corpus, max_tokens=config.train.max_tokens, longest=config.longest_pair(), seed=config.seed, sampling=0.0,
        timeout_minutes=config.train.timeout_minutes)
    source.plan(0)
    start, start_of_cores = time.perf_counter(), time.process_time()
    resident = []
    for window in range(1, windows):
        source.plan(window)
        resident.append(_resident(os.getpid()))
    seconds, core_seconds = time.perf_counter() - start, time.process_time() - start_of_cores
    source.close()
    return Streaming(seconds, core_seconds, peak_memory(torch.device("cpu")), (resident[0], resident[-1]))


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
        texts = list(map(one_line, corpus[side]))
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


def _with_data(config: RunConfig, train: tuple[str, ...], cache: str, *, workers: int) -> RunConfig:
    data = dataclasses.replace(
        config.data, path=None, train=train, validation=None, test=None, cache=cache, workers=workers)
    return dataclasses.replace(config, data=data)


@contextmanager
def _watched_memory() -> Iterator[SimpleNamespace]:
    """Inside, `gib` rises to the most that this process and its workers hold together, where /proc tells."""
    peak, done, me = SimpleNamespace(gib=0.0), threading.Event(), os.getpid()

    def watch() -> None:
        while not done.wait(0.1):
            with suppress(OSError):  # one has just ended, or there is no /proc
                all_of_us = [me, *map(int, Path(f"/proc/{me}/task/{me}/children").read_text().split())]
                peak.gib = max(peak.gib, sum(map(_resident, all_of_us)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _resident(process: int) -> float:
    """GiB of memory that a process holds; OSError where /proc does not tell."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 2**30


def _in_processes_of_one_job(count: int, function: Callable[..., Result], *arguments: Any) -> list[Result]:
    """What each of so many processes returns, which know each other as if torchrun had started them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_of_one_job, rank, count, port, function, *arguments) for rank in range(count)]
        return [future.result() for future in futures]


def _of_one_job(rank: int, count: int, port: int, function: Callable[..., Result], *arguments: Any) -> Result:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
    tune_cpu()
    with process_group("cpu", minutes=10):
        return function(*arguments)
