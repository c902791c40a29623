"""Optimizers that leave PyTorch's compiler out."""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Uncompiled(Optimizer):
    """An optimizer whose methods are never part of what is compiled.

    PyTorch's own see to that by asking the compiler, and import it for this alone when they are made: 2.4 s of every start.
    A training compiles layers (`train.compile`), and nothing around its optimizers.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """PyTorch's AdamW."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
