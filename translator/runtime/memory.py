"""Memory: how much there is, how much was taken, and what to say when it does not suffice."""

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
    """A device's memory did not suffice."""


@contextmanager
def advise_when_out_of_memory(advice: str) -> Iterator[None]:
    """Inside, memory that does not suffice is a UserError with this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"out of memory: {advice}") from error


def memory_of(device: torch.device) -> int:
    """The bytes that a device has for us: a GPU's own; elsewhere the machine's, or what its container may use of them."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return whole


def peak_memory(device: torch.device) -> float:
    """The most that this process has held so far, in GiB: on a GPU what PyTorch has there, elsewhere all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def keep_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones, instead of giving it back to the system.

    By default every large result is mapped afresh, page by page, which can cost a CPU as much as computing it. Does nothing
    on other C libraries, nor where another allocator has been preloaded (see Makefile).
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_TOP_PAD, 1 << 28)
        mallopt(M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Give the system back what `keep_freed_memory` has kept, now and then.

    Batches of ever new shapes leave gaps that none fits again: one training had grown from 1 GiB to 6 in two thousand updates.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
