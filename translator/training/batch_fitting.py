"""How large a batch a device can hold."""

from __future__ import annotations

import gc
import math

import numpy as np
import torch

from translator.config.options import RunConfig
from translator.data.batching import BatchSource
from translator.data.preparation import Corpus
from translator.model.transformer import Transformer
from translator.runtime.device import Precision
from translator.runtime.distributed import world_size
from translator.runtime.errors import UserError
from translator.runtime.memory import OutOfMemory, memory_of, peak_memory
from translator.training.updater import Updater

MOST = 2**17
# An epoch keeps so many batches at least, if its longest pair lets it: fewer updates learn less, whatever fits.
BATCHES_OF_EPOCH = 100
# Share of the memory that trials may take: batches of other shapes leave gaps.
SHARE = 0.8


def fitting_batch_tokens(config: RunConfig, corpus: Corpus, model: Transformer, *, precision: Precision) -> int:
    """The most tokens a batch, a power of two, with which an update of the largest batches fits; OutOfMemory if none does.

    It makes such updates, at a learning rate of 0: they change nothing in the model. It starts with as many tokens as the
    longest pair has, and where those do not fit goes down, else up.
    """
    if world_size() > 1:
        raise UserError("train.batch_tokens=auto: find it out with one process, and give several the number")
    longest = np.maximum(*(np.asarray(corpus.train.with_format("numpy")[f"{side}_length"][:]) for side in ("source", "target")))
    tokens = 2 ** math.ceil(math.log2(max(longest.max(), 2)))
    while not _fits(config, corpus, model, longest, tokens, precision):
        tokens //= 2
    while 2 * tokens <= min(MOST, int(longest.sum()) // BATCHES_OF_EPOCH) and _may_double(model):
        if not _fits(config, corpus, model, longest, 2 * tokens, precision):
            break
        tokens *= 2
    return tokens


def _may_double(model: Transformer) -> bool:
    """Whether there is memory for twice of what was taken so far."""
    device = next(model.parameters()).device
    return 2 * peak_memory(device) * 2**30 <= SHARE * memory_of(device)


def _fits(
    config: RunConfig, corpus: Corpus, model: Transformer, longest: np.ndarray, tokens: int, precision: Precision
) -> bool:
    """Whether an update of the largest batches of so many tokens fits; OutOfMemory where no pair fits into fewer.

    longest: of each pair, the tokens of its longer side.
    """
    rows = corpus.train.select(np.flatnonzero(longest <= tokens))
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    [largest] = BatchSource(rows, tokenizers, max_tokens=tokens, seed=config.seed).of_sizes(0, 1.0)
    try:
        updater = Updater(model, config.optim, config.train, precision=precision)
        for _ in range(2 if updater.device.type == "cuda" else 1):  # the second is recorded, which takes memory too
            updater.step([largest] * config.train.batches_of_update, 0.0)
    except OutOfMemory:
        if longest.min() > tokens // 2:
            raise
        return False
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True
