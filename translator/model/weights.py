"""A model's weights by name, taken out and put in."""

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

# What fills a tensor with random numbers as a model is made, and returns it.
DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_)


class SkipInit(TorchFunctionMode):
    """Inside, a model is made without random numbers, for weights that are there already.

    To draw them takes longer than to load as many; and the first that are drawn on the meta device have PyTorch import its
    compiler, which took half of the time until a sentence was translated.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return next(iter((*args, *kwargs.values()))) if function in DRAWS else function(*args, **kwargs)


def weights_of(model: nn.Module) -> Weights:
    """A model's weights by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def require_fit(model: nn.Module, weights: Weights, where: Path) -> None:
    """UserError, naming `where` the weights came from, if the model has other ones."""
    if {name: p.shape for name, p in model.named_parameters()} != {name: w.shape for name, w in weights.items()}:
        raise UserError(f"{where}: these weights are of another model than the run's config.yaml describes")


@torch.no_grad()
def load_into(model: nn.Module, weights: Weights, where: Path) -> None:
    """Copy weights into a model that has such."""
    require_fit(model, weights, where)
    for name, parameter in model.named_parameters():
        parameter.copy_(shard_like(weights[name], parameter))
