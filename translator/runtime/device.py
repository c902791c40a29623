"""Devices and precisions."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import cache

import torch
from torch import Tensor

from translator.runtime.errors import UserError

# How much faster bf16 products must be for bf16 to pay for its conversions.
WORTHWHILE_SPEEDUP = 1.5
# Probes that compare precisions: rows of a matrix, and products between two readings of the clock. Many on a GPU, where the
# launch of a small product takes longer than the product. A CPU without bf16 instructions is 100 times slower: a few rows
# show it.
GPU_PROBES, CPU_PROBES = ((2**14, 20),), ((2**5, 1), (2**11, 1))
HOPELESS_SPEEDUP = 0.2


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; auto is cuda, else mps, else cpu. UserError where the machine has no such device.

    On a GPU this disables cuDNN's attention for the process: it makes a plan for every new shape, which took most of an
    update of Transformer base on an H200 (docs/speed.md).
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, present in available.items() if present)
    if not available[name]:
        raise UserError(f"device={name}: no such device found. Use device=auto or device=cpu.")
    if name == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


class Precision(StrEnum):
    """The number format of matrix products, by the name that options and run folders use."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"  # training only
    INT8 = "int8"  # decoding on a CPU only: weights in int8, everything else in float32

    @classmethod
    def resolve(cls, name: str, device: torch.device) -> Precision:
        """Return the precision of that name. auto: bf16 where a short measurement finds it clearly faster than float32."""
        if name == "auto":
            return cls.BF16 if _bf16_speedup(device) >= WORTHWHILE_SPEEDUP else cls.FP32
        return cls(name)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations, and of weights in decoding."""
        return {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}.get(self, torch.float32)

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Run matrix products in this precision; weights, normalisation and softmax stay in float32."""
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that matmuls on x will use: autocast's, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def to_matmul_dtype(x: Tensor) -> Tensor:
    """Convert x as autocast would: once for all matmuls that take it."""
    return x.to(matmul_dtype(x))


@cache
def _bf16_speedup(device: torch.device) -> float:
    """Measure how many times faster this device multiplies bf16 than float32 matrices of a Transformer's size."""
    speedup = 0.0
    for rows, products in CPU_PROBES if device.type == "cpu" else GPU_PROBES:
        float32, bf16 = (_product_seconds(device, dtype, rows, products) for dtype in (torch.float32, torch.bfloat16))
        speedup = float32 / bf16
        if speedup < HOPELESS_SPEEDUP:
            break
    return speedup


def _product_seconds(device: torch.device, dtype: torch.dtype, rows: int, products: int) -> float:
    left = torch.ones(rows, 512, device=device, dtype=dtype)
    right = torch.ones(512, 512, device=device, dtype=dtype)
    runs = []
    for _ in range(5):  # the first pays for set-up; the fastest is the least disturbed
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        float(product[0, 0])  # reading a number waits for the device
        runs.append(time.perf_counter() - start)
    return min(runs)
