"""Data parallelism between CPU threads: each works on a part of a batch.

PyTorch's own threads synchronise at every operation, and wait while one draws random numbers; these only once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from translator.data.batching import Batch
from translator.runtime.seeds import seed_thread

T = TypeVar("T")

# Least target positions per thread, and most threads: with less work, or more threads, they would wait for Python's lock.
# Measured with two.
LEAST_POSITIONS, MOST_THREADS = 2**9, 8


class Threads:
    """`count` threads, each of which runs all operations of its part single-threaded."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "part of a batch")

    def parts(self, batch: Batch, passes: int) -> list[Batch]:
        """Split a batch that is read `passes` times into a part per thread, or into one where that would not pay."""
        enough = passes * batch.target_out.numel() >= self.count * LEAST_POSITIONS and len(batch.source) >= self.count
        return batch.parts(self.count) if enough and 1 < self.count <= MOST_THREADS else [batch]

    def each(self, work: Callable[[Batch], T], parts: Sequence[Batch]) -> list[T]:
        """Return `work` of each part, in order; random numbers follow from the part's seed."""
        def single_threaded(part: Batch) -> T:
            torch.set_num_threads(1)
            seed_thread(part.seed)
            return work(part)

        try:
            return list(self._pool.map(single_threaded, parts))
        finally:
            torch.set_num_threads(self.count)  # new threads get the number set last
