"""Dropout, matrix products and softmax, sped up on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from translator.runtime.device import onednn
from translator.runtime.seeds import random_words

# Numbers in a CPU's vectors. PyTorch takes the softmax of shorter rows one number at a time, up to fifteen times as slowly.
VECTORS = {"AVX2": 8, "AVX512": 16}
# Fewest numbers for which padding rows to a vector costs less than it saves.
WORTH_LENGTHENING = 2**9


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Zero each element with probability p and divide the others by 1 - p, in training (Srivastava et al. 2014, section 4).

    PyTorch draws one random number per element, which took a sixth of a training step on a CPU. Here one random word of 64
    bits serves four elements, so p is rounded to steps of 2^-16. Half precision becomes float32, the type of the residual sum.
    """
    if p == 0 or not training:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    words = random_words(-(-x.numel() // 4)).view(torch.int16)[: x.numel()].view(x.shape)
    wide = torch.promote_types(x.dtype, torch.float32)
    # 1 where a word is `least` or more, else 0. Comparing takes six times as long, and so does multiplying by booleans.
    least = round(p * 2**16) - 2**15
    return x.to(wide) * words.to(wide).sub_(least - 1).clamp_(0, 1).mul_(1 / (1 - p))


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, for many small matrices."""
    with onednn(not onednn_is_slow(left)):
        return left @ right


def onednn_is_slow(x: Tensor) -> bool:
    """Return whether oneDNN slows down many small products of x: in float32, in decoding on a CPU.

    Starting it takes longer than a small product, and it copies keys that are a slice of a cache.
    """
    in_decoding = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    return in_decoding and x.dtype == torch.float32 and x.device.type == "cpu"


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension; on a CPU rows shorter than its vectors are padded meanwhile."""
    missing = 0
    if scores.device.type == "cpu" and not torch.compiler.is_compiling() and scores.numel() >= WORTH_LENGTHENING:
        missing = VECTORS.get(torch.backends.cpu.get_cpu_capability(), 0) - scores.size(-1)
    if missing <= 0:
        return scores.softmax(dim=-1)
    return F.pad(scores, (0, missing), value=-torch.inf).softmax(dim=-1)[..., :-missing]


def all_true(mask: Tensor) -> bool:
    """Return whether a mask on a CPU allows everything; False on a GPU, which would have to wait, and in a compiled graph."""
    return mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all())
