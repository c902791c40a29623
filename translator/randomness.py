"""Seeds as a function of where they are used, so that resuming a run needs no random state (floor 1)."""

from __future__ import annotations

import numpy as np


def derive_seed(seed: int, *place: int) -> int:
    """A 31-bit seed for one place of a run, (purpose, epoch, batch): unrelated to those of other places."""
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0]) % 2**31
