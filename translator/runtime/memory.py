"""Memory: how much there is, how much was used, and advice when it runs out."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from translator.runtime.errors import UserError, is_out_of_memory

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Parameters of glibc's mallopt, from malloc.h: no separate mappings, no trimming, growth in steps of 256 MiB, and one heap for
# all threads, as the others cannot hold a large tensor.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


class OutOfMemory(UserError):
    """A device ran out of memory."""


@contextmanager
def advise_when_out_of_memory(advice: str) -> Iterator[None]:
    """Turn an out-of-memory error into OutOfMemory(advice)."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"out of memory: {advice}") from error


def memory_of(device: torch.device) -> int:
    """Return the bytes of a GPU's memory; for a CPU the machine's, or its container's limit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return whole


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of this process in GiB: on a GPU what PyTorch reserved there, elsewhere all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def keep_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones.

    By default every large result is mapped page by page, which can take a CPU as long as computing it. No effect with other
    C libraries, or where another allocator is preloaded (see Makefile).
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_TOP_PAD, 1 << 28)
        mallopt(M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return what `keep_freed_memory` keeps to the system: batches of new shapes leave gaps, and memory grew sixfold."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
