"""Batches of a corpus that is larger than memory and disk, one window of it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable

from translator.config.augmentation import AugmentConfig
from translator.config.options import DataConfig
from translator.data.batching import Batch, BatchSource
from translator.data.cleaning import Counts, HeldOut, clean
from translator.data.preparation import Corpus, describe_counts, encode_rows
from translator.data.sources import windows
from translator.runtime.console import log
from translator.runtime.distributed import SideGroup
from translator.runtime.errors import UserError


@dataclass
class WindowSource:
    """Return any batch of any window of a stream, with the methods of `BatchSource`: an epoch here is a window.

    A window is read, cleaned, tokenised, and planned like an epoch. Its number determines its content; to return to one, the
    stream is read again up to it. While one window is in use, the next is prepared. Each process reads all rows, cleans and
    tokenises a part of them, and sends that to the others.
    """

    config: DataConfig
    corpus: Corpus
    _: KW_ONLY
    max_tokens: int
    longest: int  # most tokens of a side
    seed: int
    sampling: float
    timeout_minutes: float  # longest wait for another process
    augment: AugmentConfig = AugmentConfig()  # noqa: RUF009 frozen

    def __post_init__(self) -> None:
        self._held_out = HeldOut(self.config)
        for split in (self.corpus.validation, self.corpus.test):
            self._held_out.add(list(zip(split["source"], split["target"], strict=True)))
        self._windows: Iterator[Dataset] = iter(())
        self._next = -1  # number of the window that `_windows` yields next
        self._reader, self._side = ThreadPoolExecutor(1), SideGroup(minutes=self.timeout_minutes)
        self._ready: dict[int, Future[BatchSource]] = {}

    def plan(self, epoch: int) -> list[np.ndarray]:
        return self._window(epoch).plan(epoch)

    def batch(self, epoch: int, number: int) -> Batch:
        return self._window(epoch).batch(epoch, number)

    def of_sizes(self, epoch: int, *quantiles: float) -> list[Batch]:
        return self._window(epoch).of_sizes(epoch, *quantiles)

    def close(self) -> None:
        self._side.end()
        self._reader.shutdown(cancel_futures=True)

    def _window(self, number: int) -> BatchSource:
        self._ready = {n: self._ready.get(n) or self._reader.submit(self._read, n) for n in (number, number + 1)}
        return self._ready[number].result()

    def _read(self, number: int) -> BatchSource:
        if number != self._next:
            self._windows, self._next = windows(self.config, number), number
        rows = next(self._windows)
        self._next += 1
        counts = Counts()
        cleaned = pa.concat_tables(clean(rows, self.config, self._held_out, counts, in_order=self._side.in_order))
        tokenizers = (self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        texts = Dataset(InMemoryTable(cleaned))
        tokens = list(encode_rows(texts, tokenizers, self.longest, counts, in_order=self._side.in_order))
        summary = f"window {number + 1:,}: {describe_counts(vars(counts))}"
        if not counts.kept:
            raise UserError(f"data.train: cleaning left no pair of {summary}. Correct them, or start a new run with a "
                            "larger data.window")
        log(summary)
        return BatchSource(Dataset(InMemoryTable(pa.concat_tables(tokens))), tokenizers, max_tokens=self.max_tokens,
                           seed=self.seed, longest=self.longest, sampling=self.sampling, augment=self.augment)
