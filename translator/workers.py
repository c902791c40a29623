"""Translation by several processes, answers in the order of the questions (floor 6)."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch

from translator.config import SearchConfig
from translator.device import DecodingPrecision, tune_cpu
from translator.errors import UserError
from translator.translate import CHUNK, Details, Request, Translation, Translator

# Shares given out for each worker before the first is answered: one in work, one waiting.
AHEAD = 2


@dataclass(frozen=True)
class Job:
    """How to load the models and what to ask of them."""

    runs: tuple[str, ...]
    device: str
    precision: DecodingPrecision
    search: SearchConfig
    details: bool

    def load(self) -> Translator:
        return Translator(*self.runs, device=self.device, precision=self.precision)

    def translate(self, translator: Translator, requests: Sequence[Request]) -> list[tuple[Translation, Details | None]]:
        """The answers to some requests, in order."""
        translations = translator.translate(requests, self.search)
        told = [i for i, translation in enumerate(translations) if self.details and translation.hypotheses]
        texts = [requests[i].text for i in told]
        details = translator.details(
            [text.decode() if isinstance(text, bytes) else text for text in texts], [translations[i].text for i in told],
            self.search)
        by_place = dict(zip(told, details, strict=True))
        return [(translation, by_place.get(i)) for i, translation in enumerate(translations)]


def translate_all(
    job: Job, requests: Iterable[Sequence[Request]], *, workers: int
) -> Iterator[list[tuple[Translation, Details | None]]]:
    """Answer groups of requests, in order, with so many processes that share the processor's cores; 1: in this one.

    Neither questions nor answers pile up: a few shares for each worker are on their way at a time.
    """
    if workers == 1:
        translator = job.load()
        for group in requests:
            yield job.translate(translator, group)
        return
    job.load()  # a user's mistake is told once, here
    threads = max(1, torch.get_num_threads() // workers)
    context = multiprocessing.get_context("spawn")  # a fork would copy a half of OpenMP's threads
    with ProcessPoolExecutor(workers, context, _begin, (job, threads)) as pool:
        pending: deque[Future[list[tuple[Translation, Details | None]]]] = deque()
        try:
            for group in requests:
                for first in range(0, len(group), CHUNK):
                    pending.append(pool.submit(_work, group[first : first + CHUNK]))
                while len(pending) > AHEAD * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise UserError("a worker was killed, perhaps for want of memory; try fewer workers, or a smaller "
                            "search.batch_tokens") from error
        finally:
            for future in pending:
                future.cancel()


_worker: tuple[Job, Translator] | None = None  # of a worker's own process


def _begin(job: Job, threads: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(threads)
    tune_cpu()
    _worker = job, job.load()


def _work(requests: Sequence[Request]) -> list[tuple[Translation, Details | None]]:
    assert _worker is not None
    job, translator = _worker
    return job.translate(translator, requests)
