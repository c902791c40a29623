"""Sampled softmax: the sums of a softmax over a large vocabulary estimated from some of its pieces.

Bengio and Senécal 2008, https://doi.org/10.1109/TNN.2007.912312; Jean et al. 2015, https://arxiv.org/abs/1412.2007, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from translator.runtime.seeds import random_fractions


class Sample(NamedTuple):
    """C of V pieces."""

    pieces: Tensor  # (C,), different ones
    stand_for: Tensor  # (C,): how many pieces each counts as, 1 or more
    numbers: Tensor  # (V,): which of the C each of them is; of no meaning for the others


def least_size(targets: Tensor) -> int:
    """The least size of a sample from which the sums of a softmax of these targets (N,) are estimated well.

    There must be as many others as targets: without others, each target alone would seem to stand against nothing else. A GPU
    would have to be waited for to tell how many pieces the targets are; there it is N, as they come several times each.
    """
    return 2 * len(targets.unique()) if targets.device.type == "cpu" else len(targets)


def draw(targets: Tensor, vocabulary: int, size: int) -> Sample:
    """A sample of so many pieces, fewer than the vocabulary has: the targets (N,), N <= size, and others at random.

    The sum of stand_for x f over the sample is on average the sum of f over the vocabulary. Others are drawn without
    replacement by priority sampling (Duffield, Lund and Thorup 2007, https://doi.org/10.1145/1314690.1314696): those of the
    largest weight over a random number; the largest that is not drawn says what weight the drawn ones stand for at least. A
    piece's weight is Zipf's, one over its rank, as vocabularies list frequent pieces first.
    """
    weights = 1 / torch.arange(1, vocabulary + 1, device=targets.device)
    chances = random_fractions(vocabulary, targets.device)
    priorities = (weights / chances).index_fill_(0, targets, torch.inf)
    best, order = priorities.topk(size + 1)
    pieces, threshold = order[:-1], best[-1]
    stand_for = (threshold / weights[pieces]).clamp(min=1).masked_fill_(best[:-1] == torch.inf, 1)
    numbers = pieces.new_zeros(vocabulary)
    numbers[pieces] = torch.arange(size, device=targets.device)
    return Sample(pieces, stand_for, numbers)
