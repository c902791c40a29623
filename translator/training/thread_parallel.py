"""Threads that each work on a part of a batch's sentences.

Where all threads take part in every operation of PyTorch's, each waits at its end for the slowest, and all wait for what one
does alone, as to draw random numbers. Here they meet once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from translator.data.batching import Batch
from translator.runtime.seeds import seed_thread

T = TypeVar("T")

# Target positions that each has at least, and threads that there are at most: Python runs one of them at a time, and for less
# work, or more of them, they would wait for it. Measured with two.
LEAST_POSITIONS, MOST_THREADS = 2**9, 8


class Threads:
    """So many, of which each does all operations of its part alone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "part of a batch")

    def parts(self, batch: Batch, passes: int) -> list[Batch]:
        """Of a batch that is read `passes` times, a part for each thread; all of it where that would not pay."""
        enough = passes * batch.target_out.numel() >= self.count * LEAST_POSITIONS and len(batch.source) >= self.count
        return batch.parts(self.count) if enough and 1 < self.count <= MOST_THREADS else [batch]

    def each(self, work: Callable[[Batch], T], parts: Sequence[Batch]) -> list[T]:
        """What `work` returns for each part, in their order; its random numbers follow from the part's seed."""
        def alone(part: Batch) -> T:
            torch.set_num_threads(1)
            seed_thread(part.seed)
            return work(part)

        try:
            return list(self._pool.map(alone, parts))
        finally:
            torch.set_num_threads(self.count)  # threads that begin later get the number that was set last
