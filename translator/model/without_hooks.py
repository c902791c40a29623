"""Models as decoding calls them: without the detours that PyTorch takes for what only training needs."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def bare(model: Model) -> Model:
    """A model that is for decoding alone, whose parts are found and whose innermost modules are called at once.

    nn.Module keeps parameters and modules in dictionaries of its own, where Python looks last, and asks for hooks around every
    call: a tenth and more of the time of a step for one sentence. Here they are plain attributes as well, and modules that hold
    none go straight to `forward`: no hook of theirs is asked.
    """
    straight: dict[type[nn.Module], type[nn.Module]] = {}
    for module in list(model.modules()):
        vars(module).update(module._modules | module._parameters)
        if not module._modules:
            kind = type(module)
            module.__class__ = straight.setdefault(kind, type(kind.__name__, (kind,), {"__call__": kind.forward}))
    return model
