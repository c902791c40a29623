"""Seeds as a function of where they are used, so that resuming a run needs no random state (floor 1)."""

from __future__ import annotations

import threading

import numpy as np
import torch


class _Own(threading.local):
    generator: torch.Generator | None = None


_own = _Own()


def derive_seed(seed: int, *place: int) -> int:
    """A 31-bit seed for one place of a run, (purpose, epoch, batch): unrelated to those of other places."""
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0]) % 2**31


def seed_thread(seed: int) -> None:
    """Have what this thread draws on a CPU follow from this seed, whatever other threads draw meanwhile."""
    _own.generator = torch.Generator().manual_seed(seed)


def own_generator() -> torch.Generator | None:
    """That of this thread, if it has been seeded; None: PyTorch's, which all share."""
    return None if torch.compiler.is_compiling() else _own.generator
