"""How large a batch a device can hold (floor 6)."""

from __future__ import annotations

import gc

import numpy as np
import torch

from translator.batching import BatchSource
from translator.config import RunConfig
from translator.data import Corpus
from translator.device import OutOfMemory, memory_of, peak_memory
from translator.distributed import decide
from translator.model import Transformer
from translator.updater import Updater

FEWEST, MOST = 2**9, 2**17
# An epoch keeps so many batches at least: fewer updates learn less, whatever fits.
BATCHES_OF_EPOCH = 100
# Share of the memory that trials may take: batches of other shapes leave gaps.
SHARE = 0.8


def fitting_batch_tokens(config: RunConfig, corpus: Corpus, model: Transformer, *, precision: torch.dtype) -> int:
    """The most tokens a batch, a power of two, with which an update of the largest batches fits; OutOfMemory if none does.

    It makes such updates, from few tokens up, at a learning rate of 0: they change nothing in the model. Several processes make
    them together.
    """
    device = next(model.parameters()).device
    lengths = [corpus.train.with_format("numpy")[f"{side}_length"][:] for side in ("source", "target")]
    longest = np.maximum(*map(np.asarray, lengths))
    enough = int(longest.sum()) // BATCHES_OF_EPOCH
    fits, tokens = 0, FEWEST
    while tokens <= MOST and (not fits or tokens <= enough):
        rows = np.flatnonzero(longest <= tokens)
        if len(rows):
            try:
                _update(config, corpus, model, rows, tokens, precision)
            except OutOfMemory:
                if not fits:
                    raise
                break
            finally:
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            fits = tokens
        if decide(lambda: 2 * peak_memory(device) * 2**30 > SHARE * memory_of(device)):  # the next may take twice as much
            break
        tokens *= 2
    return fits or FEWEST


def _update(
    config: RunConfig, corpus: Corpus, model: Transformer, rows: np.ndarray, tokens: int, precision: torch.dtype
) -> None:
    """An update of the largest batches of so many tokens."""
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    batches = BatchSource(corpus.train.select(rows), tokenizers, max_tokens=tokens, seed=config.seed)
    updater = Updater(model, config.optim, config.train, precision=precision)
    step = updater.step([batches.of_size(1.0)] * config.train.batches_of_update, 0.0, seed=0)
    float(step.loss)  # reading a number waits for the device
