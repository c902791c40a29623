"""Translate with several processes, in the order of the requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from translator.config.options import SearchConfig
from translator.inference.details import Details
from translator.inference.translation import Request, Translation
from translator.inference.translator import CHUNK, Translator
from translator.runtime.console import log
from translator.runtime.device import Precision, tune_cpu
from translator.runtime.process_pool import answering, in_order

REMEDY = "try fewer workers, or a smaller search.batch_tokens"
Answers = Iterator[list[tuple[Translation, Details | None]]]


@dataclass(frozen=True)
class Job:
    """Which models to load and how to translate."""

    runs: tuple[str, ...]
    device: str
    precision: Precision
    search: SearchConfig
    details: bool

    def load(self) -> Translator:
        return Translator(*self.runs, device=self.device, precision=self.precision)

    def translate(self, translator: Translator, requests: Sequence[Request]) -> list[tuple[Translation, Details | None]]:
        """Translate requests, in order, with details if the job asks for them."""
        translations = translator.translate(requests, self.search)
        details = translator.details_of(translations, self.search) if self.details else [None] * len(translations)
        return list(zip(translations, details, strict=True))


def translate_all(job: Job, requests: Iterable[Sequence[Request]], *, workers: int) -> Answers:
    """Translate groups of requests, in order, with `workers` processes that share the cores; 1: in this process."""
    workers = _at_most_cores(workers)
    if workers == 1:
        yield from map(partial(job.translate, job.load()), requests)
        return
    job.load()  # report a user's mistake once, here
    chunks = (group[first : first + CHUNK] for group in requests for first in range(0, len(group), CHUNK))
    yield from in_order(partial(_begin, job, _threads(workers)), chunks, workers=workers, remedy=REMEDY)


@contextmanager
def ready(job: Job, *, workers: int) -> Iterator[Callable[[Iterable[Sequence[Request]]], Answers]]:
    """Yield a function that translates groups of requests like `translate_all`, and may be called repeatedly."""
    workers = _at_most_cores(workers)
    if workers == 1:
        yield partial(map, partial(job.translate, job.load()))
        return
    with answering(partial(_begin, job, _threads(workers)), workers=workers, remedy=REMEDY) as answers:
        yield answers


def _at_most_cores(workers: int) -> int:
    """Return the number of workers to start, at most one a core: more would only take memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers > cores:
        log(f"workers={workers}: only {cores} are started, one for each core")
    return min(workers, cores)


def _threads(workers: int) -> int:
    return max(1, torch.get_num_threads() // workers)


def _begin(job: Job, threads: int) -> Callable[[Sequence[Request]], list[tuple[Translation, Details | None]]]:
    torch.set_num_threads(threads)
    tune_cpu()
    return partial(job.translate, job.load())
