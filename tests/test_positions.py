"""Each scheme's defining property, and lengths beyond any seen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from translator.errors import UserError
from translator.positions import LearnedPositions, RelativeBias, RotaryPositions, SinusoidalPositions


def test_sinusoidal_is_the_formula_at_any_length():
    positions = SinusoidalPositions(16)
    encoding = positions(torch.zeros(1, 3000, 16))[0]
    for position, i in ((0, 0), (1, 3), (700, 5), (2999, 7)):
        angle = position / 10_000 ** (2 * i / 16)
        assert encoding[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-3)
        assert encoding[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-3)


@pytest.mark.parametrize("scheme", [SinusoidalPositions(16), LearnedPositions(16, 64)])
def test_start_is_an_offset(scheme):
    x = torch.randn(2, 40, 16)
    torch.testing.assert_close(scheme(x[:, 30:], start=30), scheme(x)[:, 30:])


def test_learned_positions_end_with_a_clear_error():
    with pytest.raises(UserError, match="max_positions"):
        LearnedPositions(16, 64)(torch.zeros(1, 65, 16))


def test_rotary_scores_depend_on_distance_alone():
    torch.manual_seed(0)
    rotary = RotaryPositions(8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def dot(query_at: int, key_at: int) -> float:
        return (rotary(q, start=query_at) * rotary(k, start=key_at)).sum().item()

    assert dot(7, 3) == pytest.approx(dot(2004, 2000), abs=1e-3)
    assert dot(7, 3) != pytest.approx(dot(8, 3), abs=1e-3)
    assert rotary(q, start=11).norm().item() == pytest.approx(q.norm().item(), rel=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_bias_depends_on_distance_alone_and_far_ones_share(causal):
    bias = RelativeBias(2, causal=causal)
    nn.init.normal_(bias.bias.weight)
    table = bias(400, 400)[0]
    assert table.shape == (2, 400, 400)
    for distance in (0, 1, 5, 100, -1, -5, -100):
        diagonal = table.diagonal(-distance, dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))
    torch.testing.assert_close(table[:, 399, 0], table[:, 399, 150])
    assert not torch.allclose(table[:, 399, 399], table[:, 399, 398])
    torch.testing.assert_close(bias(1, 400)[0, :, 0], table[:, 399])
    if not causal:
        assert not torch.allclose(table[:, 10, 5], table[:, 5, 10])
