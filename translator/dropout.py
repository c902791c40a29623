"""Dropout that costs little on a CPU (floor 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from translator.randomness import own_generator


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """In training zero each element with probability p and divide the others by 1 - p: Srivastava et al. 2014, section 4.

    PyTorch draws one random number for each element, which took a sixth of a training step on a CPU. There each 64-bit word of
    its generator serves four elements here, so that p is met in steps of 2^-16. Half precision comes out as float32, the
    type that a residual sum needs anyway.
    """
    if p == 0 or not training:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=own_generator())
    kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= round(p * 2**16) - 2**15
    wide = torch.promote_types(x.dtype, torch.float32)
    # As floats, which training holds at four times the memory: to multiply by booleans takes a CPU three times as long.
    return x.to(wide) * kept.to(wide).mul_(1 / (1 - p))
