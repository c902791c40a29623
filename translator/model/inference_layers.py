"""Inference-time precisions, layouts and shortcuts of layers. A model converted here is for decoding only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translator.model.attention import MultiHeadAttention
from translator.model.int8 import Int8Linear, Int8Rows, in_int8, join_rows
from translator.runtime.device import Precision
from translator.runtime.errors import UserError

Model = TypeVar("Model", bound=nn.Module)

# A product whose outputs are a multiple of this has rows that begin where lines of a cache do. Vocabularies just below took
# 1.2 to 1.45 times as long.
OUTPUTS_TOGETHER = 2**6


class JoinedAttention(MultiHeadAttention):
    """Attention whose maps to keys and values, and to queries in self-attention, are one product."""

    joined: nn.Linear

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if memory is not x:
            return super().project(x, memory)
        queries, keys, values = split_joined(self.joined(x), self.num_heads, self.head_width)
        return queries, keys, values

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = split_joined(self.joined(memory), self.num_heads, self.head_width)
        return keys, values

    def maps(self) -> list[nn.Linear]:
        width = self.num_heads * self.head_width
        parts = zip(self.joined.weight.split(width), self.joined.bias.split(width), strict=True)
        maps = [linear_of(weight, bias) for weight, bias in parts]
        return maps if len(maps) == 3 else [self.W_q, *maps]


def join_maps(attention: MultiHeadAttention, *names: str) -> None:
    """Turn attention into a `JoinedAttention`, in place: names "W_k" and "W_v", for self-attention also "W_q" before them."""
    maps = [getattr(attention, name) for name in names]
    attention.joined = linear_of(join_rows([W.weight for W in maps]), torch.cat([W.bias for W in maps]))
    for name in names:
        delattr(attention, name)
    attention.__class__ = JoinedAttention


def split_joined(x: Tensor, num_heads: int, head_width: int) -> Tensor:
    """(B, T, maps x H x K) -> (maps, B, H, T, K)."""
    return x.view(*x.shape[:-1], -1, num_heads, head_width).permute(2, 0, 3, 1, 4)


def convert(model: Model, precision: Precision) -> Model:
    """Convert a decoding model's weights to a precision.

    int8: linear layers and token embeddings on a CPU, weights once, inputs of linear layers at each call.
    """
    device = next(model.parameters()).device
    if precision is Precision.INT8:
        if device.type != "cpu":
            raise UserError(f"precision=int8: not available on {device.type}. Use device=cpu, or precision=bf16.")
        in_int8(model)
        return model
    model = model.to(precision.dtype)
    if (device.type, precision) == ("cpu", Precision.FP32):
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.weight = nn.Parameter(_by_columns(layer.weight.detach()), requires_grad=False)
    return model


def int8_of(run: str | Path, device: torch.device, precision: str) -> Precision:
    """Return int8, in which a run with int8 weights is decoded also by default; UserError where that is impossible."""
    if precision == Precision.BF16:
        raise UserError(f"precision=bf16: {run} has int8 weights. Leave the option out, or use the run they were made of.")
    if device.type != "cpu":
        raise UserError(f"device={device.type}: {run} has int8 weights, for a CPU only. Use device=cpu, or the run they were "
                        "made of.")
    return Precision.INT8


def strip_hooks(model: Model) -> Model:
    """Strip nn.Module's attribute lookup and hook dispatch, a tenth of the time of a step for one sentence.

    Parameters and modules become plain attributes as well, and modules without children call `forward` directly.
    """
    direct: dict[type[nn.Module], type[nn.Module]] = {}
    for module in list(model.modules()):
        vars(module).update(module._modules | module._parameters)
        if not module._modules:
            kind = type(module)
            module.__class__ = direct.setdefault(kind, type(kind.__name__, (kind,), {"__call__": kind.forward}))
    return model


@overload
def pad_outputs(rows: Tensor) -> Tensor: ...
@overload
def pad_outputs(rows: Int8Rows) -> Int8Rows: ...
def pad_outputs(rows: Tensor | Int8Rows) -> Tensor | Int8Rows:
    """Append rows of zeros to (N, ...), up to a multiple of `OUTPUTS_TOGETHER`."""
    if isinstance(rows, Int8Rows):
        return Int8Rows(pad_outputs(rows.numbers), pad_outputs(rows.scales))
    missing = -len(rows) % OUTPUTS_TOGETHER
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-softmax in float32. On a CPU it overwrites the logits: two of them would leave the cache."""
    logits = logits.float()
    return torch.log_softmax(logits, dim=-1, out=logits if logits.device.type == "cpu" else None)


def select_outputs(layer: Any, outputs: Tensor) -> nn.Module:
    """Return a linear layer with only these outputs of `layer`, in its precision and layout."""
    if isinstance(layer, Int8Linear):
        return layer.select_outputs(outputs)
    weight = layer.weight[outputs]
    if layer.weight.stride(0) == 1:
        weight = _by_columns(weight)
    return linear_of(weight, None if layer.bias is None else layer.bias[outputs])


def linear_of(weight: Tensor | Int8Rows, bias: Tensor | None) -> Any:
    """Build a layer, without gradients, from weight (outputs, inputs) and bias (outputs,)."""
    if isinstance(weight, Int8Rows):
        return Int8Linear(weight, None if bias is None else bias.detach())
    layer = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _by_columns(weight: Tensor) -> Tensor:
    """Lay out a weight as products of a few float32 rows read it fastest on a CPU."""
    return weight.T.contiguous().T
