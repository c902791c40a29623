"""Muon against PyTorch's own, and what makes an update orthogonal against the singular values it leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.configurations import run_config
from tests.support.models import random_model
from translator.runtime.device import Precision
from translator.training import optimizers as module
from translator.training.optimizers import POLYNOMIALS, Muon, build_optimizers, orthogonalised

PYTORCH_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
SHAPES = [(12, 12), (8, 32), (32, 8), (1, 5), (5, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_muon_updates_match_pytorch_up_to_rounding(shape, monkeypatch):
    monkeypatch.setattr(module, "POLYNOMIALS", [PYTORCH_POLYNOMIAL] * 3)
    torch.manual_seed(1)
    start, gradients = torch.randn(shape), torch.randn(20, *shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.03, "weight_decay": 0.1}
    optimizers = (
        Muon([ours], dtype=torch.bfloat16, **options),
        torch.optim.Muon([theirs], ns_steps=3, adjust_lr_fn="match_rms_adamw", **options))
    for gradient in gradients:
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    assert (ours - theirs).norm() < 0.02 * (ours - start).norm()
    buffers = [optimizer.state_dict()["state"][0] for optimizer in optimizers]
    assert buffers[0].keys() == buffers[1].keys()
    assert torch.equal(buffers[0]["momentum_buffer"], buffers[1]["momentum_buffer"])


@pytest.mark.parametrize("shape", [(192, 192), (128, 512), (512, 128), (48, 48), (16, 64), (64, 16)])
@pytest.mark.parametrize("smallest", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize(("precision", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 0.1)])
def test_steps_on_the_gram_matrix_are_those_on_the_matrix(shape, smallest, precision, tolerance):
    torch.manual_seed(3)
    u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    matrix = (u * torch.logspace(0, math.log10(smallest), min(shape), dtype=torch.float64)) @ v
    x = matrix / matrix.norm()
    for a, b, c in POLYNOMIALS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    [result] = orthogonalised(matrix[None], precision)
    if precision == torch.bfloat16 and min(shape) < 64:  # the fewer numbers a sum has, the less their rounding evens out
        tolerance *= 2
    assert (result - x).norm() <= tolerance * x.norm()


def test_no_other_polynomials_come_nearer_to_one():
    """Chebyshev's criterion: the errors of the best one with three coefficients are largest four times, in turn up and down."""
    lowest, highest = 0.01, 1.0
    for a, b, c in POLYNOMIALS:
        turns = np.sqrt(np.sort(np.roots([5 * c, 3 * b, a])))  # where the slope a + 3 b x^2 + 5 c x^4 is none
        x = np.array([lowest, *turns, highest])
        values = a * x + b * x**3 + c * x**5
        assert 1 - values == pytest.approx((1 - values[0]) * np.array([1, -1, 1, -1]), abs=1e-3)
        lowest, highest = values[0], 2 - values[0]
    assert lowest == pytest.approx(0.731, abs=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_directions_stay_and_sizes_become_alike(shape, scale):
    torch.manual_seed(2)
    u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    sizes = torch.linspace(0.3, 1.0, min(shape), dtype=torch.float64)
    matrices = torch.stack([scale * (u * sizes) @ v, torch.randn(shape, dtype=torch.float64)])  # each made so by itself
    result = orthogonalised(matrices, torch.float64)
    left = u.T @ result[0] @ v.T
    assert ((left.diagonal() > 0.72) & (left.diagonal() < 1.28)).all()
    torch.testing.assert_close(left, left.diagonal().diag(), atol=1e-9, rtol=0)
    torch.testing.assert_close(orthogonalised(result.mT, torch.float64), orthogonalised(result, torch.float64).mT)


def test_nothing_to_learn_moves_nothing():
    weight = nn.Parameter(torch.ones(4, 3))
    weight.grad = torch.zeros(4, 3)
    optimizer = Muon([weight], lr=0.1)
    optimizer.step()
    assert torch.equal(weight, torch.ones(4, 3))
    weight.grad = None
    optimizer.step()
    assert torch.equal(weight, torch.ones(4, 3))


@pytest.mark.parametrize(("of_model", "of_muon"), [
    (Precision.FP32, torch.float32), (Precision.BF16, torch.bfloat16), (Precision.FP16, torch.float32)])
def test_bf16_is_asked_of_no_processor_that_does_not_train_in_it(of_model, of_muon, monkeypatch):
    optim = run_config("optim=muon").optim
    muon = build_optimizers(random_model(), optim, precision=of_model)[0]
    seen = set()
    multiply = torch.baddbmm

    def watched(*tensors: torch.Tensor, **options: float) -> torch.Tensor:
        seen.update(tensor.dtype for tensor in tensors)
        return multiply(*tensors, **options)

    monkeypatch.setattr(torch, "baddbmm", watched)
    for group in muon.param_groups:
        for weight in group["params"]:
            weight.grad = torch.full_like(weight, 1 / math.pi)
    muon.step()
    assert seen == {of_muon}
