"""Seeds as a function of where they are used, so that resuming a run needs no random state, and what is drawn."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor


class _Own(threading.local):
    generator: np.random.Generator | None = None


_own = _Own()


def derive_seed(seed: int, *place: int) -> int:
    """A 31-bit seed for one place of a run, (purpose, epoch, batch): unrelated to those of other places."""
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0]) % 2**31


def seed_thread(seed: int) -> None:
    """Have what this thread draws below follow from this seed, instead of from PyTorch's, which all threads share.

    By NumPy's SFC64, which takes half as long as PyTorch's generator.
    """
    _own.generator = np.random.Generator(np.random.SFC64(seed))


def random_words(count: int) -> Tensor:
    """So many of 64 random bits each: (count,) on the CPU."""
    if _own.generator is None or torch.compiler.is_compiling():
        return torch.empty(count, dtype=torch.int64).random_(-(2**63), None)
    return torch.from_numpy(_own.generator.integers(-(2**63), 2**63, count, dtype=np.int64))


def random_fractions(count: int, device: torch.device) -> Tensor:
    """So many, uniform in [0, 1): (count,) in float32."""
    if _own.generator is None:
        return torch.rand(count, device=device)
    return torch.from_numpy(_own.generator.random(count, dtype=np.float32)).to(device)
