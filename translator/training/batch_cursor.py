"""Where in its data a training stands: the batches of each update, divided among the processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from translator.config.options import RunConfig
from translator.data.batching import Batch, BatchSource, empty_batch
from translator.data.preparation import Corpus
from translator.data.stream import WindowSource
from translator.runs.training_state import TrainingState
from translator.runtime.distributed import own_items, world_size

# Sentences of an update that are named.
NAMED_SENTENCES = 5


class BatchCursor:
    """Walks through the batches of epoch after epoch, and keeps its place in the training's state."""

    def __init__(self, config: RunConfig, corpus: Corpus, state: TrainingState) -> None:
        options: dict[str, Any] = {
            "max_tokens": config.train.max_tokens, "longest": config.longest_pair(), "seed": config.seed,
            "sampling": config.tokenizer.sampling}
        self.source: BatchSource | WindowSource
        if config.data.window is None:
            self.unit = "epoch"  # what `state.epoch` counts
            self.source = BatchSource(corpus.train, (corpus.source_tokenizer, corpus.target_tokenizer), **options)
        else:
            self.unit = "window"
            self.source = WindowSource(config.data, corpus, timeout_minutes=config.train.timeout_minutes, **options)
        self.state, self.batches_of_update = state, config.train.batches_of_update
        self._of_update = slice(0, 0)  # which batches of the epoch the last update took, all processes' together

    @property
    def batches_per_epoch(self) -> int:
        return len(self.source.plan(self.state.epoch))

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(self.batches_per_epoch / self.batches_of_update)

    @property
    def epochs(self) -> float:
        """How many have been trained on."""
        return self.state.epoch + self.state.batch / self.batches_per_epoch

    def next_batches(self) -> list[Batch]:
        """Return this process's batches of the next update: equally many in each process, so some may be empty."""
        state = self.state
        if state.batch >= self.batches_per_epoch:
            state.epoch, state.batch = state.epoch + 1, 0
        start, state.batch = state.batch, min(state.batch + self.batches_of_update, self.batches_per_epoch)
        self._of_update = slice(start, state.batch)
        own = [self.source.batch(state.epoch, number) for number in own_items(range(start, state.batch))]
        return own + [empty_batch()] * (math.ceil((state.batch - start) / world_size()) - len(own))

    def sentences(self) -> str:
        """Name the sentences of the last update."""
        rows = np.sort(np.concatenate(self.source.plan(self.state.epoch)[self._of_update]))
        numbers = ", ".join(f"{row + 1:,}" for row in rows[:NAMED_SENTENCES])
        more = f" and {len(rows) - NAMED_SENTENCES:,} more" if len(rows) > NAMED_SENTENCES else ""
        return f"sentences {numbers}{more} of those kept{'' if self.unit == 'epoch' else f' of window {self.state.epoch + 1}'}"

    def close(self) -> None:
        """Stop reading ahead: the end of the program would wait for that."""
        if isinstance(self.source, WindowSource):
            self.source.close()
