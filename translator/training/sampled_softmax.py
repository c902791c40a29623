"""Sampled softmax: estimate the sums of a softmax over a large vocabulary from a sample of its pieces.

Bengio and Senécal 2008, https://doi.org/10.1109/TNN.2007.912312; Jean et al. 2015, https://arxiv.org/abs/1412.2007, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from translator.runtime.seeds import random_fractions


class Sample(NamedTuple):
    """C of V pieces."""

    pieces: Tensor  # (C,), distinct
    weights: Tensor  # (C,): how many pieces each stands for, at least 1
    numbers: Tensor  # (V,): the place in the sample of each sampled piece; undefined for the others


def least_size(targets: Tensor) -> int:
    """Return the least sample size that estimates a softmax of these targets (N,) well: twice their distinct pieces.

    On a GPU it is N, since to count distinct pieces would wait for the GPU.
    """
    return 2 * len(targets.unique()) if targets.device.type == "cpu" else len(targets)


def draw(targets: Tensor, vocabulary: int, size: int) -> Sample:
    """Draw `size` < `vocabulary` pieces: the targets (N,), N <= size, and others at random.

    The sum of weights x f over the sample is on average the sum of f over the vocabulary. Others are drawn without replacement
    by priority sampling (Duffield, Lund and Thorup 2007, https://doi.org/10.1145/1314690.1314696): the largest ratios of
    frequency to a random number; the largest ratio not drawn bounds the weights from below. Frequencies follow Zipf's law,
    one over the rank, since vocabularies list frequent pieces first.
    """
    frequencies = 1 / torch.arange(1, vocabulary + 1, device=targets.device)
    priorities = (frequencies / random_fractions(vocabulary, targets.device)).index_fill_(0, targets, torch.inf)
    best, order = priorities.topk(size + 1)
    pieces, threshold = order[:-1], best[-1]
    weights = (threshold / frequencies[pieces]).clamp(min=1).masked_fill_(best[:-1] == torch.inf, 1)
    numbers = pieces.new_zeros(vocabulary)
    numbers[pieces] = torch.arange(size, device=targets.device)
    return Sample(pieces, weights, numbers)
