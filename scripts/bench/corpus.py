"""How the cost of reading a corpus grows with its size and the processes at it; the rows of each table, heading first.

The corpus is the train split of the options, repeated with variations.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from common import in_fresh_process

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

CPU = torch.device("cpu")


def preparation_table(sizes: tuple[int, ...], processes: tuple[int, ...], config: RunConfig) -> Iterator[list[str]]:
    yield ["pairs", "processes", "preparation: s", "pairs/s", "pairs/s of a core's time", "GiB of the first process",
           "second start, to the end of the first update: s", "its GiB"]
    for pairs in sizes:
        for workers in processes:
            with tempfile.TemporaryDirectory() as folder:
                repeated = with_repeated(config, Path(folder), pairs, validation=None, test=None, workers=workers)
                seconds, core_seconds, memory = in_fresh_process(prepared, repeated)
                second, second_memory = in_fresh_process(second_start, repeated, time.time())
            yield [f"{pairs:,}", f"{workers}", f"{seconds:,.0f}", f"{pairs / seconds:,.0f}", f"{pairs / core_seconds:,.0f}",
                   f"{memory:.2f}", f"{second:.1f}", f"{second_memory:.2f}"]


def stream_table(config: RunConfig, pairs: int = 3_000_000, window: int = 100_000) -> Iterator[list[str]]:
    """By processes as torchrun starts them that do nothing but read."""
    yield ["processes", "s", "pairs/s", "pairs/s of a core's time", "GiB a process, second window", "last window"]
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            repeated = with_repeated(config, Path(folder), pairs, window=window)
            costs = in_one_job(processes, streamed, repeated, pairs // window)
        seconds, core_seconds = max(cost[0] for cost in costs), sum(cost[1] for cost in costs)
        yield [f"{processes}", f"{seconds:,.0f}", *(f"{(pairs - window) / spent:,.0f}" for spent in (seconds, core_seconds)),
               *(f"{max(cost[which] for cost in costs):.2f}" for which in (2, 3))]


TABLES: dict[str, Callable[[RunConfig], Iterator[list[str]]]] = {
    "corpus": partial(preparation_table, (30_000, 300_000, 3_000_000, 10_000_000), (1,)),
    "preparation": partial(preparation_table, (1_000_000, 10_000_000), (1, 2)), "stream": stream_table}


def prepared(config: RunConfig) -> tuple[float, float, float]:
    """Prepare a corpus: seconds, seconds of all cores, peak GiB of this process."""
    start, start_of_cores = time.perf_counter(), time.process_time()
    prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    seconds, core_seconds = time.perf_counter() - start, time.process_time() - start_of_cores
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, core_seconds + workers.ru_utime + workers.ru_stime, peak_memory(CPU)


def second_start(config: RunConfig, launched: float) -> tuple[float, float]:
    """Return the seconds from `launched`, by time.time, to the end of the first update on a prepared corpus, and peak GiB."""
    tune_cpu(training=True)
    device = resolve_device(config.device)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    batches = BatchSource(corpus.train, tokenizers, max_tokens=config.train.max_tokens, seed=config.seed)
    precision = Precision.resolve(config.precision, device)
    updater = Updater(new_model(config, corpus, device), config.optim, config.train, precision=precision)
    updater.step([batches.batch(0, 0)], config.optim.lr)
    return time.time() - launched, peak_memory(CPU)


def streamed(config: RunConfig, windows: int) -> tuple[float, float, float, float]:
    """Read a stream after its first window: seconds, of this core, peak GiB after the second window and after the last."""
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    source = WindowSource(
        config.data, corpus, max_tokens=config.train.max_tokens, longest=config.longest_pair(), seed=config.seed, sampling=0.0,
        timeout_minutes=config.train.timeout_minutes)
    source.plan(0)
    start, start_of_cores = time.perf_counter(), time.process_time()
    memory = []
    for window in range(1, windows):
        source.plan(window)
        memory.append(peak_memory(CPU))
    seconds, core_seconds = time.perf_counter() - start, time.process_time() - start_of_cores
    source.close()
    return seconds, core_seconds, memory[0], memory[-1]


def with_repeated(config: RunConfig, folder: Path, pairs: int, **options: Any) -> RunConfig:
    """Return options of data in text files, with so many pairs to train on, and a cache beside them.

    The pairs are the corpus, then again and again, each time with another number at the end. Splits that `options` names as
    null are cut from it, the others copied.
    """
    for split in SPLITS:
        if split in options:
            continue
        rows = load_split(config.data, split)
        count = pairs if split == "train" else len(rows)
        options[split] = tuple(f"{folder}/{split}.{side}" for side in ("source", "target"))
        for file, side in zip(options[split], ("source", "target"), strict=True):
            texts = list(map(one_line, rows[side]))
            with Path(file).open("w", encoding="utf-8") as lines:
                for number, first in enumerate(range(0, count, len(texts))):
                    end = f" {number}\n" if number else "\n"
                    lines.writelines(text + end for text in texts[: count - first])
    data = dataclasses.replace(config.data, path=None, cache=f"{folder}/cache", **options)
    max_epochs = None if data.window else config.train.max_epochs
    return dataclasses.replace(config, data=data, train=dataclasses.replace(config.train, max_epochs=max_epochs))


def in_one_job(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of so many processes that know each other as if torchrun had started them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        return list(pool.map(partial(as_rank, job, function, arguments), range(count)))


def as_rank(job: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...], rank: int) -> Any:
    os.environ |= job | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    tune_cpu()
    with process_group("cpu", minutes=10):
        return function(*arguments)
