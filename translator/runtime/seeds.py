"""Random numbers whose seed follows from the place of use, so that resuming a run needs no saved random state."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor


class _Thread(threading.local):
    generator: np.random.Generator | None = None


_thread = _Thread()


def derive_seed(seed: int, *place: int) -> int:
    """Return a 31-bit seed for one place of a run, (purpose, epoch, batch), independent of other places."""
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0]) % 2**31


def seed_thread(seed: int) -> None:
    """Seed the numbers below for this thread: PyTorch's generator is shared by all threads. SFC64 takes half its time."""
    _thread.generator = np.random.Generator(np.random.SFC64(seed))


def random_words(count: int) -> Tensor:
    """Draw words of 64 random bits: (count,) int64 on the CPU."""
    if _thread.generator is None or torch.compiler.is_compiling():
        return torch.empty(count, dtype=torch.int64).random_(-(2**63), None)
    return torch.from_numpy(_thread.generator.integers(-(2**63), 2**63, count, dtype=np.int64))


def random_fractions(count: int, device: torch.device) -> Tensor:
    """Draw numbers uniform in [0, 1): (count,) float32."""
    if _thread.generator is None:
        return torch.rand(count, device=device)
    return torch.from_numpy(_thread.generator.random(count, dtype=np.float32)).to(device)
