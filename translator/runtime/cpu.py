"""Settings that make PyTorch fast on a CPU: freed memory is kept, and oneDNN multiplies where it pays."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

# The relative error of a sum of 512 products stays well below this in float32, and well above in bf16.
FLOAT32_ERROR = 1e-5
# Kernels that oneDNN caches in training, instead of 1,024: batches of all lengths need a few thousand, of 0.8 MB each.
CACHED_KERNELS = 2**12
# Parameters of glibc's mallopt, from malloc.h: no separate mappings, no trimming, growth in steps of 256 MiB, and one heap for
# all threads, as the others cannot hold a large tensor.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


def tune_cpu(*, training: bool = False) -> None:
    """Tune this process for a CPU: for scripts, as a library must not change its caller's process.

    training: the same shapes come again every epoch, so oneDNN caches its kernels for all of them. Compiling one takes ten
    times as long as the product in bf16. oneDNN reads the setting at its first product.
    """
    keep_freed_memory()
    if training:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(CACHED_KERNELS))
    multiply_by_onednn()


def multiply_by_onednn() -> None:
    """Let oneDNN multiply float32 matrices where it is as exact as MKL, which takes twice as long on an AMD Zen 5.

    PyTorch calls oneDNN only when it may round inputs to bf16, which oneDNN does on processors with units for bf16. One
    product shows whether it does here.
    """
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    left, right = (torch.rand(512, 512, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    exact = left.double() @ right.double()
    if ((left @ right - exact).abs() / exact).max() > FLOAT32_ERROR:
        settings.fp32_precision = before


def onednn(wanted: bool) -> AbstractContextManager[None]:
    """Let oneDNN multiply on a CPU inside only if `wanted`; otherwise MKL does, or PyTorch itself."""
    # Called several times a layer: where nothing changes, it must cost nothing.
    return nullcontext() if wanted or not torch.backends.mkldnn.enabled else _without_onednn()


@contextmanager
def _without_onednn() -> Iterator[None]:
    settings: Any = torch.backends.mkldnn
    settings.enabled = False
    try:
        yield
    finally:
        settings.enabled = True


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
