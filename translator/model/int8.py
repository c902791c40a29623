"""Linear layers in int8, for decoding on a CPU."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

LARGEST = 127
# Multiplications up to which rounding the inputs to int8 as well takes longer than it spares.
SMALL_PRODUCT = 2**18
# PyTorch takes up to so many numbers of a small input at a time, and reads past the end of rows of other lengths.
VECTOR = 32


class Int8Linear(nn.Module):
    """A linear layer whose weights are whole numbers from -127 to 127, times a scale for each output.

    Its inputs are rounded as they come: to int8 by the range of them all (PyTorch's dynamic quantisation), those of a small
    product to bf16.
    """

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        """weight (outputs, inputs) int8, scales (outputs,), bias (outputs,)."""
        super().__init__()
        self.weight, self.scales, self.bias = weight, scales, bias
        # Inputs of no more numbers than this make a small product that may be taken so.
        self.small = 0 if weight.size(1) % VECTOR else SMALL_PRODUCT // weight.size(0)
        self.scales_of_small = scales.bfloat16()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch says that these tensors move to a package of its own
            quantised = torch.quantize_per_channel(
                weight * scales[:, None], scales, torch.zeros(len(scales), dtype=torch.long), axis=0, dtype=torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, bias)

    @classmethod
    def of(cls, layer: nn.Linear) -> Int8Linear:
        """The nearest to a layer in float32."""
        weight = layer.weight.detach()
        # Above zero, for outputs whose weights are all zero.
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny * LARGEST) / LARGEST
        bias = None if layer.bias is None else layer.bias.detach()
        return cls((weight / scales[:, None]).round().to(torch.int8), scales, bias)

    def some(self, outputs: Tensor) -> Int8Linear:
        """The layer of these outputs alone."""
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
    """Put an `Int8Linear` in the place of every linear layer of a model."""
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                setattr(module, name, Int8Linear.of(layer))
