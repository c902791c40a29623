"""Batches of a corpus that is larger than memory and disk, one window of it at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable

from translator.config.options import DataConfig
from translator.data.batching import Batch, BatchSource
from translator.data.cleaning import Counts, HeldOut, clean
from translator.data.preparation import Corpus, describe_counts, encode_rows
from translator.data.sources import windows
from translator.runtime.console import log
from translator.runtime.distributed import SideGroup
from translator.runtime.errors import UserError


class WindowSource:
    """Return any batch of any window of a stream, with the methods of `BatchSource`: an epoch here is a window.

    A window is read, cleaned, tokenised, and planned like an epoch. Its number determines its content; to return to one, the
    stream is read again up to it. While one window is in use, the next is prepared. Each process reads all rows, cleans and
    tokenises a part of them, and sends that to the others.
    """

    def __init__(
        self, config: DataConfig, corpus: Corpus, *, max_tokens: int, longest: int, seed: int, sampling: float,
        timeout_minutes: float,
    ) -> None:
        """Start no reading yet. longest: most tokens of a side. timeout_minutes: longest wait for another process."""
        self.config = config
        self.corpus = corpus
        self.max_tokens, self.longest = max_tokens, longest
        self.seed = seed
        self.sampling = sampling
        self._held_out = HeldOut(config)
        for split in (corpus.validation, corpus.test):
            self._held_out.add(list(zip(split["source"], split["target"], strict=True)))
        self._windows: Iterator[Dataset] = iter(())
        self._next = -1  # number of the window that `_windows` yields next
        self._reader, self._side = ThreadPoolExecutor(1), SideGroup(minutes=timeout_minutes)
        self._ready: dict[int, Future[BatchSource]] = {}

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the indices of the pairs of each batch of a window."""
        return self._window(epoch).plan(epoch)

    def batch(self, epoch: int, number: int) -> Batch:
        """Return one batch of a window."""
        return self._window(epoch).batch(epoch, number)

    def of_sizes(self, epoch: int, *quantiles: float) -> list[Batch]:
        """Return the batches at quantiles of size in a window."""
        return self._window(epoch).of_sizes(epoch, *quantiles)

    def close(self) -> None:
        """Stop reading. No further window can be had."""
        self._side.end()
        self._reader.shutdown(cancel_futures=True)

    def _window(self, number: int) -> BatchSource:
        needed = (number, number + 1)
        self._ready = {n: self._ready.get(n) or self._reader.submit(self._read, n) for n in needed}
        return self._ready[number].result()

    def _read(self, number: int) -> BatchSource:
        if number != self._next:
            self._windows, self._next = windows(self.config, number), number
        rows = next(self._windows)
        self._next += 1
        counts = Counts()
        texts = _dataset(clean(rows, self.config, self._held_out, counts, in_order=self._side.in_order))
        tokenizers = (self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        tokens = list(encode_rows(texts, tokenizers, self.longest, counts, in_order=self._side.in_order))
        summary = f"window {number + 1:,}: {describe_counts(counts.to_json())}"
        if not counts.kept:
            raise UserError(
                f"data.train: no pair is left after cleaning of {summary}. Correct them, or start a new run with a larger "
                "data.window")
        log(summary)
        return BatchSource(
            _dataset(tokens), tokenizers, max_tokens=self.max_tokens, seed=self.seed, longest=self.longest,
            sampling=self.sampling)


def _dataset(tables: Iterable[pa.Table]) -> Dataset:
    return Dataset(InMemoryTable(pa.concat_tables(tables)))
