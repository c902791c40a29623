"""Linear layers in int8, for decoding on a CPU."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

LARGEST = 127
# Multiplications up to which rounding the inputs to int8 takes longer than it saves.
SMALL_PRODUCT = 2**18
# PyTorch reads a small input in vectors of this many numbers, and past the end of rows that are no multiple of it.
VECTOR = 32


class Int8Linear(nn.Module):
    """A linear layer with weights from -127 to 127, times a scale for each output.

    Inputs are rounded at each call: to int8 by their range (PyTorch's dynamic quantisation), in a small product to bf16.
    """

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        """weight (outputs, inputs) int8, scales (outputs,), bias (outputs,)."""
        super().__init__()
        self.weight, self.scales, self.bias = weight, scales, bias
        # Most numbers in the inputs of a small product.
        self.small = 0 if weight.size(1) % VECTOR else SMALL_PRODUCT // weight.size(0)
        self.scales_of_small = scales.bfloat16()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch is moving these tensors to another package
            quantised = torch.quantize_per_channel(
                weight * scales[:, None], scales, torch.zeros(len(scales), dtype=torch.long), axis=0, dtype=torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, bias)

    @classmethod
    def of(cls, layer: nn.Linear) -> Int8Linear:
        """Quantise a layer in float32."""
        weight = layer.weight.detach()
        # Above zero, for outputs whose weights are all zero.
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny * LARGEST) / LARGEST
        bias = None if layer.bias is None else layer.bias.detach()
        return cls((weight / scales[:, None]).round().to(torch.int8), scales, bias)

    def select_outputs(self, outputs: Tensor) -> Int8Linear:
        """Return the layer with only these outputs."""
        return Int8Linear(self.weight[outputs], self.scales[outputs], None if self.bias is None else self.bias[outputs])

    def forward(self, x: Tensor) -> Tensor:
        """x (..., inputs) -> (..., outputs)."""
        if x.dim() > 2:
            return self(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        if x.numel() > self.small:
            return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)
        y = torch._weight_int8pack_mm(x.bfloat16(), self.weight, self.scales_of_small)
        return y.float() if self.bias is None else self.bias + y


def in_int8(model: nn.Module) -> None:
    """Replace every linear layer of a model by an `Int8Linear`."""
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                setattr(module, name, Int8Linear.of(layer))
