"""Optimizers without PyTorch's compiler."""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Uncompiled(Optimizer):
    """Base class of optimizers that are never compiled: training compiles layers only.

    PyTorch's own optimizers import its compiler to keep out of it, which takes 2.4 s of every start.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """PyTorch's AdamW."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
