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
from translator.inference.translator import Translator
from translator.runtime.console import log
from translator.runtime.device import Precision, tune_cpu
from translator.runtime.process_pool import answering

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


@contextmanager
def ready(job: Job, *, workers: int) -> Iterator[Callable[[Iterable[Sequence[Request]]], Answers]]:
    """Yield a function that translates groups of requests, in order.

    `workers` processes share the cores, at most one a core: more would only take memory. 1: this process.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers > cores:
        log(f"workers={workers}: only {cores} are started, one for each core")
        workers = cores
    if workers == 1:
        yield partial(map, partial(job.translate, job.load()))
        return
    begin = partial(_begin, job, max(1, torch.get_num_threads() // workers))
    with answering(begin, workers=workers, remedy="try fewer workers, or a smaller search.batch_tokens") as answers:
        yield answers


def _begin(job: Job, threads: int) -> Callable[[Sequence[Request]], list[tuple[Translation, Details | None]]]:
    torch.set_num_threads(threads)
    tune_cpu()
    return partial(job.translate, job.load())
