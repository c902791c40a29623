"""Dropout: how much, of which elements, and what is left of them."""

from __future__ import annotations

import pytest
import torch

from translator.model.cpu_operations import dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_the_right_share_goes_and_the_rest_makes_up_for_it(p):
    torch.manual_seed(0)
    ones = torch.ones(1_000_000)
    left = dropout(ones, p)
    assert left.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    assert (left == 0).float().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / 1e6) ** 0.5)


def test_elements_go_independently_of_their_neighbours():
    torch.manual_seed(0)
    gone = (dropout(torch.ones(1_000_000), 0.3) == 0).float() - 0.3
    for distance in (1, 2, 3, 4, 64, 256):
        covariance = (gone[:-distance] * gone[distance:]).mean().item()
        assert abs(covariance) < 5 * 0.21 / 1000, distance
    for lane in range(4):
        assert abs(gone[lane::4].mean().item()) < 5 * (0.21 / 250_000) ** 0.5, lane


def test_the_gradient_goes_where_the_element_went():
    x = torch.randn(7, 3, requires_grad=True)
    left = dropout(x, 0.4)
    left.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(left == 0, 0, 1 / 0.6).float())


def test_the_seed_decides():
    x = torch.ones(5, 11)
    torch.manual_seed(3)
    first = dropout(x, 0.5)
    assert not torch.equal(dropout(x, 0.5), first)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 4)])
def test_any_shape_and_type(dtype, shape):
    x = torch.ones(shape, dtype=dtype)
    assert dropout(x, 0.5).shape == shape
    assert dropout(x, 0.5).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert dropout(x, 0.0) is x


def test_out_of_training_nothing_goes():
    x = torch.ones(100)
    assert not torch.equal(dropout(x, 0.5, True), x)
    assert dropout(x, 0.5, False) is x
