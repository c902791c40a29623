"""Find the largest batch that fits in a device's memory (train.batch_tokens=auto)."""

from __future__ import annotations

import gc
import math

import numpy as np
import torch

from translator.config.options import RunConfig
from translator.data.batching import BatchSource
from translator.data.preparation import Corpus
from translator.model.transformer import Transformer
from translator.runtime.device import OutOfMemory, Precision, memory_of, peak_memory
from translator.runtime.distributed import world_size
from translator.runtime.errors import UserError
from translator.training.updater import Updater

MOST = 2**17
# Least batches of an epoch, if its longest pair allows: with fewer updates a model learns less.
BATCHES_OF_EPOCH = 100
# Fraction of the memory that a trial may take: batches of other shapes leave gaps.
FRACTION = 0.8


def fitting_batch_tokens(config: RunConfig, corpus: Corpus, model: Transformer, *, precision: Precision) -> int:
    """Return the largest power of two with which an update of the largest batches fits; OutOfMemory if none does.

    The trial updates have a learning rate of 0. They start from the longest pair's tokens, and go down or up from there.
    """
    if world_size() > 1:
        raise UserError("train.batch_tokens=auto: works with one process only. Run it with one, and give several the number.")
    longest = np.maximum(*(np.asarray(corpus.train.with_format("numpy")[f"{side}_length"][:]) for side in ("source", "target")))
    device = next(model.parameters()).device

    def fits(tokens: int) -> bool:
        """OutOfMemory where no pair would be left with fewer tokens."""
        try:
            _update_with(tokens, longest, config, corpus, model, precision)
        except OutOfMemory:
            if longest.min() > tokens // 2:
                raise
            return False
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return True

    tokens = 2 ** math.ceil(math.log2(max(longest.max(), 2)))
    while not fits(tokens):
        tokens //= 2
    most = min(MOST, int(longest.sum()) // BATCHES_OF_EPOCH)
    while 2 * tokens <= most and 2 * peak_memory(device) * 2**30 <= FRACTION * memory_of(device) and fits(2 * tokens):
        tokens *= 2
    return tokens


def _update_with(
    tokens: int, longest: np.ndarray, config: RunConfig, corpus: Corpus, model: Transformer, precision: Precision
) -> None:
    """Make an update of the largest batches of this many tokens. longest: the tokens of each pair's longer side."""
    rows = corpus.train.select(np.flatnonzero(longest <= tokens))
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    [largest] = BatchSource(rows, tokenizers, max_tokens=tokens, seed=config.seed).of_sizes(0, 1.0)
    updater = Updater(model, config.optim, config.train, precision=precision)
    for _ in range(2 if updater.device.type == "cuda" else 1):  # the second captures a CUDA graph, which takes memory too
        updater.step([largest] * config.train.batches_of_update, 0.0)
