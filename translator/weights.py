"""A model's weights by name, taken out and put in (floor 2)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from translator.distributed import held_like
from translator.errors import UserError
from translator.files import Weights


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
        parameter.copy_(held_like(weights[name], parameter))
