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
from translator.config.corpora import corpora_of
from translator.config.data import DataConfig
from translator.data.batching import Batch, BatchSource
from translator.data.cleaning import Counts, HeldOut, Section, clean
from translator.data.mixing import MIXING, Mix, weights_of
from translator.data.preparation import Corpus, encode_rows, sections_of
from translator.data.report import describe_counts
from translator.data.sources import windows
from translator.runtime.console import log
from translator.runtime.distributed import SideGroup
from translator.runtime.errors import UserError
from translator.runtime.seeds import derive_seed


@dataclass
class WindowSource:
    """Return any batch of any window of a stream, with the methods of `BatchSource`: an epoch here is a window.

    A window is read, cleaned, tokenised, and planned like an epoch. Its number determines its content; to return to one, the
    stream is read again up to it. While one window is in use, the next is prepared. Each process reads all rows, cleans and
    tokenises a part of them, and sends that to the others. Of several corpora, a window has rows of each, by their shares.
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
        self._corpora = [corpus for corpus in corpora_of(self.config) if corpus.has_train]
        self._windows: Iterator[tuple[Dataset, ...]] = iter(())
        self._next = -1  # number of the window that `_windows` yields next
        self._reader, self._side = ThreadPoolExecutor(1), SideGroup(minutes=self.timeout_minutes)
        self._ready: dict[int, Future[BatchSource]] = {}

    def plan(self, epoch: int) -> list[np.ndarray]:
        return self._window(epoch).plan(epoch)

    def rows(self, epoch: int, batches: slice) -> np.ndarray:
        return self._window(epoch).rows(epoch, batches)

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
            streams = (windows(corpus, number) for corpus in self._corpora)
            self._windows, self._next = zip(*streams, strict=True), number
        tables = next(self._windows)
        self._next += 1
        sections = [Section(rows, corpus, Counts()) for rows, corpus in zip(tables, self._corpora, strict=True)]
        counts = {section.config.name: section.counts for section in sections}
        cleaned = pa.concat_tables(clean(sections, self._held_out, in_order=self._side.in_order))
        texts = [(Dataset(InMemoryTable(cleaned[rows.start : rows.stop])), counts[name])
                 for name, rows in sections_of(counts).items()]
        tokenizers = (self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        encoded = list(encode_rows(texts, tokenizers, self.longest, in_order=self._side.in_order))
        for name, of_corpus in counts.items():
            summary = f"window {number + 1:,}: {name and f'{name}: '}{describe_counts(vars(of_corpus))}"
            if not of_corpus.kept:
                raise UserError(f"data.train: cleaning left no pair of {summary}. Correct them, or start a new run with a "
                                "larger data.window")
            log(summary)
        table = pa.concat_tables(encoded)
        if weights := weights_of(self.config, sections_of(counts)):
            table = table.take(Mix(sections_of(counts), weights).rows(0, derive_seed(self.seed, MIXING, number)))
        return BatchSource(Dataset(InMemoryTable(table)), tokenizers, max_tokens=self.max_tokens,
                           seed=self.seed, longest=self.longest, sampling=self.sampling, augment=self.augment)
