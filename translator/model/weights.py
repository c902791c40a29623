"""Read and write a model's weights by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from translator.model.int8 import Int8Rows, int8_layers, use_int8_rows
from translator.runtime.atomic_files import Weights
from translator.runtime.distributed import shard_like
from translator.runtime.errors import UserError

# End the names of a layer's matrix and, where that is in int8, of its scales.
WEIGHT, SCALES = ".weight", ".scales"
# Functions that fill a tensor with random numbers when a model is built, and return it.
DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_)


class SkipInit(TorchFunctionMode):
    """Skip random initialisation of models built inside, whose weights are loaded afterwards.

    Drawing numbers takes longer than loading them. On the meta device it also makes PyTorch import its compiler, which
    took half of the time until the first translation.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return next(iter((*args, *kwargs.values()))) if function in DRAWS else function(*args, **kwargs)


def weights_of(model: nn.Module) -> Weights:
    """Return a model's weights by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def require_fit(model: nn.Module, weights: Weights, where: Path) -> None:
    """Raise UserError, naming the file `where`, if the weights do not fit the model."""
    expected = {name: p.shape for name, p in model.named_parameters()}
    if is_int8(weights):
        expected |= {layer + SCALES: expected[layer + WEIGHT][:1] for layer, _ in int8_layers(model)}
    if expected != {name: w.shape for name, w in weights.items()}:
        raise UserError(f"{where}: these weights do not match the model in the run's config.yaml.")


@torch.no_grad()
def load_into(model: nn.Module, weights: Weights, where: Path) -> None:
    """Copy weights into a model."""
    require_fit(model, weights, where)
    for name, parameter in model.named_parameters():
        parameter.copy_(shard_like(weights[name], parameter))


def is_int8(weights: Weights) -> bool:
    """Return whether `quantise` returned these weights."""
    return any(weight.dtype == torch.int8 for weight in weights.values())


def quantise(weights: Weights, model: nn.Module) -> Weights:
    """Return float32 weights with the matrices of the model's `int8_layers` in int8, and their scales beside them."""
    quantised = dict(weights)
    for name, _ in int8_layers(model):
        rows = Int8Rows.of(weights[name + WEIGHT])
        quantised |= {name + WEIGHT: rows.numbers, name + SCALES: rows.scales}
    return quantised


def dequantise(weights: Weights) -> Weights:
    """Return weights in float32, as `quantise` had them up to rounding."""
    matrices = [name.removesuffix(SCALES) for name in weights if name.endswith(SCALES)]
    floats = {name + WEIGHT: Int8Rows(weights[name + WEIGHT], weights[name + SCALES]).dequantise() for name in matrices}
    scales = {name + SCALES for name in matrices}
    return {name: floats.get(name, weight) for name, weight in weights.items() if name not in scales}


def load_int8_into(model: nn.Module, weights: Weights, where: Path) -> None:
    """Load what `quantise` returned into a model for decoding; `inference_layers.convert` makes it ready.

    The matrices never take memory in float32.
    """
    require_fit(model, weights, where)
    floats = dict(weights)
    for name, layer in int8_layers(model):
        # A copy: the file may be mapped into memory, and replaced while a server runs.
        use_int8_rows(layer, Int8Rows(floats.pop(name + WEIGHT).clone(), floats.pop(name + SCALES).clone()))
    load_into(model, floats, where)
