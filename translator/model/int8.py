"""Linear layers and embeddings with weights in int8, for decoding on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 127
# Multiplications up to which rounding the inputs to int8 takes longer than it saves.
SMALL_PRODUCT = 2**18
# PyTorch reads a small input in vectors of this many numbers, and past the end of rows that are no multiple of it.
VECTOR = 32
# The attribute of `transformer.Embedding` that holds the table of tokens. Tables of positions and biases stay in float32.
TOKENS = "tokens"


@dataclass(frozen=True)
class Int8Rows:
    """A matrix whose row i is `numbers[i]`, from -127 to 127, times `scales[i]`: (N, D) int8 and (N,) float32."""

    numbers: Tensor
    scales: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> Int8Rows:
        """Quantise a float32 matrix (N, D): the largest number of each row becomes 127."""
        # Above zero, for rows that are all zero.
        scales = matrix.abs().amax(dim=1).clamp(min=torch.finfo(matrix.dtype).tiny * LARGEST) / LARGEST
        return cls((matrix / scales[:, None]).round().to(torch.int8), scales)

    def __getitem__(self, rows: slice | Tensor) -> Int8Rows:
        return Int8Rows(self.numbers[rows], self.scales[rows])

    def dequantise(self) -> Tensor:
        """Return the matrix (N, D) in float32."""
        return self.numbers * self.scales[:, None]


def join_rows(parts: Sequence[Tensor | Int8Rows]) -> Tensor | Int8Rows:
    """Concatenate matrices along their rows."""
    numbers, scales = [], []
    for part in parts:
        if not isinstance(part, Int8Rows):
            return torch.cat(list(parts))  # type: ignore[arg-type]  # all are of one kind
        numbers.append(part.numbers)
        scales.append(part.scales)
    return Int8Rows(torch.cat(numbers), torch.cat(scales))


class Int8Linear(nn.Module):
    """A linear layer with weights in int8.

    Inputs are rounded at each call: to int8 by their range (PyTorch's dynamic quantisation), in a small product to bf16.
    """

    def __init__(self, weight: Int8Rows, bias: Tensor | None) -> None:
        """weight (outputs, inputs), bias (outputs,)."""
        super().__init__()
        self.weight, self.bias = weight, bias
        # Most numbers in the inputs of a small product.
        self.small = 0 if weight.numbers.size(1) % VECTOR else SMALL_PRODUCT // len(weight.numbers)
        self.numbers, self.scales_of_small = weight.numbers, weight.scales.bfloat16()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch is moving these tensors to another package
            zeros = torch.zeros(len(weight.scales), dtype=torch.long)
            quantised = torch._make_per_channel_quantized_tensor(weight.numbers, weight.scales, zeros, 0)
        self.packed = torch.ops.quantized.linear_prepack(quantised, bias)

    @classmethod
    def of(cls, layer: nn.Linear) -> Int8Linear:
        """Convert a layer, whose weights are in float32, or in int8 by `use_int8_rows`."""
        return cls(rows_of(layer), None if layer.bias is None else layer.bias.detach())

    def select_outputs(self, outputs: Tensor) -> Int8Linear:
        """Return the layer with only these outputs."""
        return Int8Linear(self.weight[outputs], None if self.bias is None else self.bias[outputs])

    def forward(self, x: Tensor) -> Tensor:
        """x (..., inputs) -> (..., outputs)."""
        if x.dim() > 2:
            return self(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        if x.numel() > self.small:
            return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)
        y = torch._weight_int8pack_mm(x.bfloat16(), self.numbers, self.scales_of_small)
        return y.float() if self.bias is None else self.bias + y


class Int8Embedding(nn.Module):
    """A table of token embeddings in int8, which are dequantised as they are looked up."""

    def __init__(self, rows: Int8Rows) -> None:
        super().__init__()
        self.numbers, self.scales = rows.numbers, rows.scales[:, None]

    def forward(self, ids: Tensor) -> Tensor:
        """ids (...) -> (..., D)."""
        return self.numbers[ids] * self.scales[ids]


def int8_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers whose weights int8 holds, by name: linear ones and token embeddings, shared ones once."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) or name.split(".")[-1] == TOKENS:
            yield name, layer


def rows_of(layer: nn.Module) -> Int8Rows:
    """Return the weights of a layer in int8, quantised if they are in float32."""
    weight: Any = layer.weight
    return weight if isinstance(weight, Int8Rows) else Int8Rows.of(weight.detach())


def use_int8_rows(layer: nn.Module, rows: Int8Rows) -> None:
    """Replace the weights of a layer, which cannot be called until `in_int8` converts it."""
    del layer.weight
    layer.weight = rows  # type: ignore[assignment]


def in_int8(model: nn.Module) -> None:
    """Replace the linear layers and the token embeddings of a model by those in int8."""
    tables: dict[nn.Module, Int8Embedding] = {}  # both sides may share one
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                setattr(module, name, Int8Linear.of(layer))
            elif name == TOKENS:
                tables[layer] = tables.get(layer) or Int8Embedding(rows_of(layer))
                setattr(module, name, tables[layer])
