"""Where a model runs and in which precision (floor 1)."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from translator.errors import UserError
from translator.int8 import Int8Linear, in_int8

Precision = Literal["fp32", "bf16", "fp16"]
DecodingPrecision = Literal["fp32", "bf16", "int8"]
PRECISIONS: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Model = TypeVar("Model", bound=nn.Module)


class OutOfMemory(UserError):
    """A device's memory did not suffice."""


# How much faster bf16 products must be for bf16 to pay for its conversions.
WORTHWHILE_SPEEDUP = 1.5
# Products between two readings of the clock on a GPU: one takes no longer than to ask for it.
GPU_PRODUCTS = 50

# The relative error of a sum of 512 products of positive float32 numbers stays well below this, of bf16 numbers well above.
FLOAT32_ERROR = 1e-5
# How allocators that have no exception of their own say it.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# Kernels that oneDNN keeps in training, instead of 1,024: batches of all lengths want a few thousand, of 0.8 MB each.
KEPT_KERNELS = 2**12
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Parameters of glibc's mallopt, from malloc.h: no separate mappings, no trimming, and growth in steps of 256 MiB.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def resolve_device(name: str) -> torch.device:
    """The device of that name; auto is cuda, else mps, else cpu. UserError where the machine has none such."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, present in available.items() if present)
    if not available[name]:
        raise UserError(f"device={name}: PyTorch finds no such device on this machine; use device=auto or device=cpu")
    return torch.device(name)


def resolve_precision(name: Precision | Literal["auto"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products; auto is bf16 where a short measurement finds it clearly faster than float32."""
    if name == "auto":
        name = "bf16" if _bf16_speedup(device) >= WORTHWHILE_SPEEDUP else "fp32"
    return PRECISIONS[name]


def name_of_precision(precision: torch.dtype) -> Precision:
    """The name by which `resolve_precision` knows a dtype."""
    return next(name for name, dtype in PRECISIONS.items() if dtype == precision)


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[None]:
    """Run matrix products in `precision`; weights, normalisation and softmax stay in float32."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


def product_precision(x: Tensor) -> torch.dtype:
    """That in which x is multiplied here: `autocast`'s, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def in_product_precision(x: Tensor) -> Tensor:
    """x as `autocast` would convert it for each product that takes it: here once for all of them."""
    return x.to(product_precision(x))


def convert(model: Model, name: DecodingPrecision | Literal["auto"]) -> Model:
    """A model that is for decoding alone, its weights in that precision: auto as `resolve_precision` has it.

    int8: linear layers on a CPU, weights once, inputs as they come.
    """
    device = next(model.parameters()).device
    if name != "int8":
        precision = resolve_precision(name, device)
        model = model.to(precision)
        return _laid_out_by_columns(model) if (device.type, precision) == ("cpu", torch.float32) else model
    if device.type != "cpu":
        raise UserError(f"precision=int8: there is none for {device.type}; use device=cpu, or precision=bf16")
    in_int8(model)
    return model


def some_outputs(layer: Any, outputs: Tensor) -> nn.Module:
    """A linear layer that computes these outputs of another, in its precision and layout."""
    if isinstance(layer, Int8Linear):
        return layer.some(outputs)
    weight = layer.weight[outputs]
    if layer.weight.stride(0) == 1:
        weight = _by_columns(weight)
    return linear_of(weight, None if layer.bias is None else layer.bias[outputs])


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """The layer of these weights (outputs, inputs) and this bias (outputs,), for decoding alone."""
    layer = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _laid_out_by_columns(model: Model) -> Model:
    """The same weights, those of linear layers as a product of a few float32 rows reads them fastest on a CPU."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(_by_columns(layer.weight.detach()), requires_grad=False)
    return model


def _by_columns(weight: Tensor) -> Tensor:
    return weight.T.contiguous().T


def tune_cpu(*, training: bool = False) -> None:
    """What makes PyTorch fast on a CPU and holds for a whole process: a script's to choose, not a library's.

    training: shapes of products come again, epoch by epoch (`keep_kernels`).
    """
    keep_freed_memory()
    if training:
        keep_kernels()
    multiply_by_onednn()


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


@contextmanager
def telling_of_memory(advice: str) -> Iterator[None]:
    """Inside, memory that does not suffice is a UserError with this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and not any(sign in str(error) for sign in OUT_OF_MEMORY):
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
    """The most that this process has held so far, in GiB: on a GPU its tensors there, elsewhere all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def give_back_freed_memory() -> None:
    """Give the system back what `keep_freed_memory` has kept, now and then.

    Batches of ever new shapes leave gaps that none fits again: one training had grown from 1 GiB to 6 in two thousand updates.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _bf16_speedup(device: torch.device) -> float:
    """How many times faster this device multiplies bf16 than float32 matrices of a Transformer's size; once a process."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left = torch.ones(2048, 512, device=device, dtype=dtype)
        right = torch.ones(512, 512, device=device, dtype=dtype)
        runs = []
        for _ in range(5):  # the first pays for set-up; the fastest is the least disturbed
            start = time.perf_counter()
            for _ in range(1 if device.type == "cpu" else GPU_PRODUCTS):
                product = left @ right
            float(product[0, 0])  # reading a number waits for the device
            runs.append(time.perf_counter() - start)
        seconds[dtype] = min(runs)
    return seconds[torch.float32] / seconds[torch.bfloat16]
