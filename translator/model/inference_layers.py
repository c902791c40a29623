"""Linear layers as a processor has them done soonest: their sizes, and for decoding alone precision and layout."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translator.model.int8 import Int8Linear, in_int8
from translator.runtime.device import Precision
from translator.runtime.errors import UserError

Model = TypeVar("Model", bound=nn.Module)

# Where the number of a product's outputs is a multiple of this, its rows begin and end where lines of a cache do. Numbers just
# below, as vocabularies may have, took 1.2 to 1.45 times as long.
OUTPUTS_TOGETHER = 2**6


def convert(model: Model, precision: Precision) -> Model:
    """Convert a decoding model's weights to a precision.

    int8: linear layers on a CPU, weights once, inputs as they come.
    """
    device = next(model.parameters()).device
    if precision is not Precision.INT8:
        model = model.to(precision.dtype)
        return _laid_out_by_columns(model) if (device.type, precision) == ("cpu", Precision.FP32) else model
    if device.type != "cpu":
        raise UserError(f"precision=int8: there is none for {device.type}; use device=cpu, or precision=bf16")
    in_int8(model)
    return model


def evened(rows: Tensor) -> Tensor:
    """(N, ...) with zeros behind it to a multiple of `OUTPUTS_TOGETHER`."""
    missing = -len(rows) % OUTPUTS_TOGETHER
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def log_probabilities(logits: Tensor) -> Tensor:
    """Their log-softmax, in float32. On a CPU it may be written over them: as much again is more than a cache holds."""
    logits = logits.float()
    return torch.log_softmax(logits, dim=-1, out=logits if logits.device.type == "cpu" else None)


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
