"""What makes PyTorch fast on a CPU: freed memory that is kept, and oneDNN where it pays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from translator.runtime.memory import keep_freed_memory

# The relative error of a sum of 512 products of positive float32 numbers stays well below this, of bf16 numbers well above.
FLOAT32_ERROR = 1e-5
# Kernels that oneDNN keeps in training, instead of 1,024: batches of all lengths want a few thousand, of 0.8 MB each.
KEPT_KERNELS = 2**12


def tune_cpu(*, training: bool = False) -> None:
    """What makes PyTorch fast on a CPU and holds for a whole process: a script's to choose, not a library's.

    training: shapes of products come again, epoch by epoch (`keep_kernels`).
    """
    keep_freed_memory()
    if training:
        keep_kernels()
    multiply_by_onednn()


def keep_kernels() -> None:
    """Have oneDNN keep the code that it writes for every shape of a product, for as many as come again epoch by epoch.

    To write it took ten times as long as the product, in bf16. oneDNN reads the setting at its first product.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))


def multiply_by_onednn() -> None:
    """Have oneDNN multiply float32 matrices on a CPU, where that is as exact as MKL, PyTorch's usual library.

    On an AMD Zen 5 MKL was measured to take twice as long. PyTorch asks oneDNN only when it may round inputs to
    bf16; oneDNN makes use of that on processors with units for such products. Elsewhere it stays with float32: one product
    shows which.
    """
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    left, right = (torch.rand(512, 512, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    exact = left.double() @ right.double()
    if ((left @ right - exact).abs() / exact).max() > FLOAT32_ERROR:
        settings.fp32_precision = before


def onednn(wanted: bool) -> AbstractContextManager[None]:
    """Inside, oneDNN multiplies on a CPU only if that is wanted; else MKL does, or PyTorch itself."""
    # Asked for several times a layer: where nothing changes, that must cost nothing.
    return nullcontext() if wanted or not torch.backends.mkldnn.enabled else _without_onednn()


@contextmanager
def _without_onednn() -> Iterator[None]:
    settings: Any = torch.backends.mkldnn
    settings.enabled = False
    try:
        yield
    finally:
        settings.enabled = True
