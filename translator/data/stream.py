"""Batches of a corpus that is larger than memory and disk, a window of it at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable

from translator.config.options import DataConfig
from translator.data.batching import Batch, BatchSource
from translator.data.cleaning import Counts, HeldOut, clean
from translator.data.preparation import Corpus, describe_counts, encoded
from translator.data.sources import windows
from translator.runtime.console import log
from translator.runtime.distributed import SideGroup
from translator.runtime.errors import UserError


class WindowSource:
    """The batches of a stream of pairs, with the methods of `BatchSource`; what is an epoch there is a window here.

    A window is read, cleaned, tokenised, and planned like an epoch. All follows from its number: any can be gone back to, by
    reading past those before it. The next one is made ready while a window is in use. Of several processes each reads all of
    it, cleans and tokenises a share, and tells the others.
    """

    def __init__(
        self, config: DataConfig, corpus: Corpus, *, max_tokens: int, longest: int, seed: int, sampling: float,
        timeout_minutes: float,
    ) -> None:
        """`longest`: the most tokens of a pair's side. `timeout_minutes`: how long another process is waited for."""
        self.config = config
        self.corpus = corpus
        self.max_tokens, self.longest = max_tokens, longest
        self.seed = seed
        self.sampling = sampling
        self._held_out = HeldOut(config)
        for split in (corpus.validation, corpus.test):
            self._held_out.add(list(zip(split["source"], split["target"], strict=True)))
        self._windows: Iterator[Dataset] = iter(())
        self._next = -1  # the number of the window that `_windows` gives next
        self._reader, self._side = ThreadPoolExecutor(1), SideGroup(minutes=timeout_minutes)
        self._ready: dict[int, Future[BatchSource]] = {}

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The numbers of the pairs of each batch of a window."""
        return self._window(epoch).plan(epoch)

    def batch(self, epoch: int, number: int) -> Batch:
        """One batch of a window."""
        return self._window(epoch).batch(epoch, number)

    def of_sizes(self, epoch: int, *quantiles: float) -> list[Batch]:
        """Batches of a window by their ranks in cells."""
        return self._window(epoch).of_sizes(epoch, *quantiles)

    def close(self) -> None:
        """Leave off reading: no window can be had any more."""
        self._side.end()
        self._reader.shutdown(cancel_futures=True)

    def _window(self, number: int) -> BatchSource:
        wanted = (number, number + 1)
        self._ready = {n: future for n, future in self._ready.items() if n in wanted}
        for n in wanted:
            if n not in self._ready:
                self._ready[n] = self._reader.submit(self._read, n)
        return self._ready[number].result()

    def _read(self, number: int) -> BatchSource:
        if number != self._next:
            self._windows, self._next = windows(self.config, number), number
        rows = next(self._windows)
        self._next += 1
        counts = Counts()
        texts = _dataset(clean(rows, self.config, self._held_out, counts, in_order=self._side.in_order))
        tokenizers = (self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        tokens = list(encoded(texts, tokenizers, self.longest, counts, Counter(), in_order=self._side.in_order))
        told = f"window {number + 1:,}: {describe_counts(counts.to_json())}"
        if not counts.kept:
            raise UserError(
                f"data.train: no pair is left after cleaning of {told}; mend these, or start anew with a larger data.window")
        log(told)
        return BatchSource(
            _dataset(tokens), tokenizers, max_tokens=self.max_tokens, seed=self.seed, longest=self.longest,
            sampling=self.sampling)


def _dataset(tables: Iterable[pa.Table]) -> Dataset:
    return Dataset(InMemoryTable(pa.concat_tables(tables)))
