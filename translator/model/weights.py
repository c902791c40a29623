"""Read and write a model's weights by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from translator.runtime.atomic_files import Weights
from translator.runtime.distributed import shard_like
from translator.runtime.errors import UserError

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
    if {name: p.shape for name, p in model.named_parameters()} != {name: w.shape for name, w in weights.items()}:
        raise UserError(f"{where}: these weights do not match the model in the run's config.yaml.")


@torch.no_grad()
def load_into(model: nn.Module, weights: Weights, where: Path) -> None:
    """Copy weights into a model."""
    require_fit(model, weights, where)
    for name, parameter in model.named_parameters():
        parameter.copy_(shard_like(weights[name], parameter))
