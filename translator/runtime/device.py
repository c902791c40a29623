"""Devices: choice, precision, memory, what makes a CPU fast, and the machine as text."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import translator
from translator.runtime.errors import UserError, is_out_of_memory

WORTHWHILE_SPEEDUP = 1.5  # of products in bf16, to pay for its conversions
# Probes that compare precisions: rows of a matrix, and products between two readings of the clock. Many on a GPU, where the
# launch of a small product takes longer than the product. A CPU without bf16 instructions is 100 times slower: a few rows
# show it.
GPU_PROBES, CPU_PROBES = ((2**14, 20),), ((2**5, 1), (2**11, 1))
HOPELESS_SPEEDUP = 0.2
FLOAT32_ERROR = 1e-5  # the relative error of a sum of 512 products is well below this in float32, and well above in bf16


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
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return whole


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of this process in GiB: on a GPU what PyTorch reserved there, elsewhere all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def tune_cpu(*, training: bool = False) -> None:
    """Tune this process for a CPU: for scripts, as a library must not change its caller's process.

    training: the same shapes come again every epoch, so oneDNN caches its kernels for all of them. Compiling one takes ten
    times as long as the product in bf16. oneDNN reads the setting at its first product.
    """
    keep_freed_memory()
    if training:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")  # instead of 1,024, of 0.8 MB each
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
        mallopt(-4, 0)  # M_MMAP_MAX of malloc.h: no separate mappings
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: no trimming
        mallopt(-2, 1 << 28)  # M_TOP_PAD: growth in steps of 256 MiB
        mallopt(-8, 1)  # M_ARENA_MAX: one heap for all threads, as the others cannot hold a large tensor


def give_back_freed_memory() -> None:
    """Return what `keep_freed_memory` keeps to the system: batches of new shapes leave gaps, and memory grew sixfold."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def environment(device: torch.device) -> dict[str, str]:
    """Return the machine, the libraries and the code's version, by name."""
    gpu = {"GPU": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    cpuinfo, root = Path("/proc/cpuinfo"), Path(translator.__file__).resolve().parent.parent
    named = re.search(r"^model name\s*: (.*)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    commit = ""
    if (root / ".git").exists() and shutil.which("git"):
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    libraries = ("torch", "sentencepiece", "sacrebleu", "datasets")
    return gpu | {
        "processor": named[1] if named else platform.processor() or platform.machine(),
        "threads": str(torch.get_num_threads()), "system": platform.platform(), "Python": platform.python_version(),
        **{library: version(library) for library in libraries},
        "translator": f"{translator.__version__} commit {commit}" if commit else translator.__version__}
