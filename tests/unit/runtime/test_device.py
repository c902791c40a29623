"""What is made fast stays exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.configurations import model_config
from tests.support.models import random_model
from translator.inference.translator import Translator
from translator.model.inference_layers import convert
from translator.model.transformer import Transformer
from translator.runtime import device
from translator.runtime.device import (
    OutOfMemory,
    Precision,
    advise_when_out_of_memory,
    multiply_by_onednn,
    onednn,
    resolve_device,
)
from translator.runtime.errors import UserError

MATMUL = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = MATMUL.fp32_precision
    yield
    MATMUL.fp32_precision = before
    torch.backends.mkldnn.enabled = True  # type: ignore[attr-defined]


def test_products_stay_float32_whoever_makes_them() -> None:
    multiply_by_onednn()
    torch.manual_seed(0)
    for rows, inner, columns in ((1, 64, 64), (160, 256, 1024), (700, 1024, 256)):
        left, right = torch.rand(rows, inner), torch.rand(inner, columns)
        exact = left.double() @ right.double()
        assert ((left @ right - exact).abs() / exact).max() < 1e-5


@pytest.mark.parametrize(("few", "many", "probes", "chosen"), [
    (0.01, 0.01, 1, "fp32"), (0.9, 1.2, 2, "fp32"), (0.9, 2.0, 2, "bf16")])
def test_a_processor_that_is_slow_at_bf16_is_asked_for_little(
    monkeypatch: pytest.MonkeyPatch, few: float, many: float, probes: int, chosen: str
) -> None:
    """Times as fast as float32 at a few rows and at many: hopeless at few, it is not asked for many."""
    asked: set[int] = set()

    def seconds(_: torch.device, dtype: torch.dtype, rows: int, products: int) -> float:
        asked.add(rows)
        return 1.0 if dtype == torch.float32 else 1 / (few if rows < 100 else many)

    monkeypatch.setattr(device, "_product_seconds", seconds)
    device._bf16_speedup.cache_clear()
    assert Precision.resolve("auto", torch.device("cpu")) == chosen
    device._bf16_speedup.cache_clear()
    assert len(asked) == probes


def test_where_products_would_be_rounded_all_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = MATMUL.fp32_precision
    monkeypatch.setattr(device, "FLOAT32_ERROR", 0.0)  # no product is exact enough
    multiply_by_onednn()
    assert MATMUL.fp32_precision == before


def test_onednn_is_skipped_only_where_asked() -> None:
    settings: Any = torch.backends.mkldnn
    for enabled in (True, False):
        settings.enabled = enabled
        for wanted in (True, False):
            with suppress(BackendError), onednn(wanted):
                assert settings.enabled == (enabled and wanted)
                raise BackendError
            assert settings.enabled == enabled


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative", "learned"])
@pytest.mark.parametrize(("precision", "error"), [("bf16", 0.15), ("int8", 0.3)])
def test_a_converted_model_stays_close(positions: str, precision: str, error: float) -> None:
    model = random_model(model_config(positions=positions))
    source, target = torch.randint(4, 40, (2, 30)), torch.randint(4, 40, (2, 30))
    with torch.inference_mode():
        expected = model(source, target).log_softmax(-1)
        converted = convert(model, Precision(precision))(source, target).float().log_softmax(-1)
    assert (converted - expected).abs().max() < error * expected.abs().max()
    assert not torch.equal(converted, expected)


def test_a_device_that_is_not_there_is_named() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device=cuda"):
            resolve_device("cuda")


class BackendError(RuntimeError):
    """As PyTorch's compiler and its collectives have them."""


def test_a_device_that_is_full_is_told_as_a_model_is_loaded(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Transformer, "to", full)
    with pytest.raises(OutOfMemory, match="device=cpu"):
        Translator(run_folder, device="cpu")


@pytest.mark.parametrize(("error", "of_memory"), [
    (MemoryError(), True), (torch.OutOfMemoryError("CUDA out of memory"), True),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
    (BackendError("MPS backend out of memory"), True), (BackendError("no C++ compiler"), False),
    (RuntimeError("shapes differ"), False), (NotImplementedError("for this backend"), False)])
def test_nothing_but_memory_is_told_as_memory(error: Exception, of_memory: bool) -> None:
    with pytest.raises(OutOfMemory if of_memory else type(error)), advise_when_out_of_memory("lower train.batch_tokens"):
        raise error
