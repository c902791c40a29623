"""Translate the sentences of many requests together: a fair queue, one worker thread, batches of like length."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

Sentence = TypeVar("Sentence")

SHORT = 40  # tokens: shorter sentences share a batch, of any lengths


class Full(Exception):
    """Too many sentences wait already."""


class _Waiting(NamedTuple):
    turn: int
    sentence: Any
    kind: Hashable
    size: int
    future: asyncio.Future[Any]


class Batcher(Generic[Sentence]):
    """Queue for one worker thread, to use from one event loop.

    Requests take turns (start-time fair queuing): the first sentence of each comes before the second of any. A request
    of many sentences therefore goes into several batches, and a short request is translated between two of them.
    """

    def __init__(
        self, translate: Callable[[list[Sentence]], Sequence[Any]], *, kind: Callable[[Sentence], Hashable],
        size: Callable[[Sentence], int], batch_tokens: int, max_waiting: int,
    ) -> None:
        """Call `translate` on batches of sentences of one `kind`; `size`: the tokens of a sentence."""
        self._translate, self._kind, self._size = translate, kind, size
        self._batch_tokens, self._max_waiting = batch_tokens, max_waiting
        self._queue: list[_Waiting] = []  # by turn
        self._turn = 0  # of requests that arrive now
        self._task: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(1, "batcher")
        self.sentences_done = self.batches_done = 0

    @property
    def waiting(self) -> int:
        return sum(not waiting.future.done() for waiting in self._queue)

    async def submit(self, sentences: Sequence[Sentence]) -> list[Any]:
        """Return the answer to each sentence. Raises Full. If cancelled, its sentences leave the queue."""
        waiting = self.waiting
        if waiting and waiting + len(sentences) > self._max_waiting:  # a single request may be larger
            raise Full
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in sentences]
        by_size = sorted(zip(sentences, futures, strict=True), key=lambda pair: self._size(pair[0]))
        self._queue += [_Waiting(turn, sentence, self._kind(sentence), self._size(sentence), future)
                        for turn, (sentence, future) in enumerate(by_size, self._turn)]
        self._queue.sort(key=lambda waiting: waiting.turn)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:  # if one failed, nobody waits for the others
                future.cancel()

    def close(self) -> None:
        self._worker.shutdown()  # waits for the batch in work

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            try:
                answers = await loop.run_in_executor(self._worker, self._translate, [job.sentence for job in batch])
            except Exception as error:  # for the requests in this batch, not for the server
                for job in batch:
                    if not job.future.done():
                        job.future.set_exception(error)
            else:
                for job, answer in zip(batch, answers, strict=True):
                    if not job.future.done():
                        job.future.set_result(answer)
                self.sentences_done += len(batch)
                self.batches_done += 1

    def _next_batch(self) -> list[_Waiting]:
        """Take the first sentence from the queue, and those after it that go with it."""
        batch: list[_Waiting] = []
        left: list[_Waiting] = []
        longest = 0
        for job in self._queue:
            if job.future.done():  # nobody waits for it
                continue
            width = max(longest, job.size)
            if not batch or (
                    job.kind == batch[0].kind and job.size <= max(SHORT, 2 * batch[0].size)
                    and (len(batch) + 1) * width <= self._batch_tokens):
                batch.append(job)
                longest = width
            else:
                left.append(job)
        self._queue = left
        if batch:
            self._turn = batch[0].turn + 1  # later than this batch, so that a stream of requests cannot starve an old one
        return batch
