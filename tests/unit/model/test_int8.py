"""Layers in int8 stay near those in float32, however many rows they are given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from translator.model.int8 import SMALL_PRODUCT, Int8Embedding, Int8Linear, Int8Rows, in_int8


def layer_of(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight *= torch.logspace(-2, 2, outputs)[:, None]  # rows of all sizes: each has its own scale
    return layer.requires_grad_(False)


def error(layer: nn.Linear, x: torch.Tensor, *, rows: int) -> float:
    """Of the worst output: the mean error over the mean size, where so many rows are given at once."""
    expected, int8 = layer(x), Int8Linear.of(layer)
    found = torch.cat([int8(some) for some in x.split(rows)])
    return float(((found - expected).abs().mean(dim=0) / expected.abs().mean(dim=0)).max())


@pytest.mark.parametrize("bias", [True, False])
def test_all_outputs_are_near_and_those_of_few_rows_the_nearest(bias):
    layer, x = layer_of(64, 48, bias=bias), torch.randn(400, 64)
    few = SMALL_PRODUCT // (48 * 64)
    one, more, all_at_once = (error(layer, x, rows=rows) for rows in (1, few, len(x)))
    assert 0 < one == more < all_at_once < 0.05


def test_rows_may_stand_in_any_shape():
    int8, x = Int8Linear.of(layer_of(64, 48)), torch.randn(6, 64)
    assert torch.equal(int8(x.view(2, 3, 64)), int8(x).view(2, 3, 48))
    assert int8(x[:0]).shape == (0, 48)


def test_some_outputs_are_those_of_the_whole():
    whole, outputs = Int8Linear.of(layer_of(64, 48)), torch.tensor([3, 40, 7])
    for rows in (torch.randn(1, 64), torch.randn(SMALL_PRODUCT // 64, 64)):
        torch.testing.assert_close(whole.select_outputs(outputs)(rows), whole(rows)[:, outputs])


def test_weights_of_nothing_but_zeros_give_the_bias():
    layer = nn.Linear(8, 4)
    nn.init.zeros_(layer.weight)
    assert torch.equal(Int8Linear.of(layer)(torch.randn(3, 8)), layer.bias.expand(3, 4))


@pytest.mark.parametrize("inputs", [1, 8, 31, 33, 100, 200])
def test_inputs_of_any_number_are_taken_and_none_besides(inputs):
    torch.manual_seed(0)
    for outputs in (1, 5, 250):
        layer = nn.Linear(inputs, outputs).requires_grad_(False)
        int8 = Int8Linear.of(layer)
        for x in torch.randn(20, 1, inputs):
            torch.testing.assert_close(int8(x), layer(x), rtol=0, atol=0.1)


def test_every_linear_layer_is_replaced():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    in_int8(model)
    assert [type(module) for module in model.modules() if not isinstance(module, nn.Sequential)] == [
        Int8Linear, nn.ReLU, Int8Linear]


def test_rows_are_off_by_half_a_scale_at_most():
    matrix = layer_of(64, 48).weight
    rows = Int8Rows.of(matrix)
    assert rows.numbers.abs().amax(dim=1).eq(127).all()
    assert ((rows.dequantise() - matrix).abs() <= 0.501 * rows.scales[:, None]).all()


def test_embeddings_are_rows_of_the_table():
    rows, ids = Int8Rows.of(layer_of(64, 48).weight), torch.tensor([[3, 40], [7, 3]])
    assert torch.equal(Int8Embedding(rows)(ids), rows.dequantise()[ids])


def test_a_table_that_both_sides_share_is_converted_once():
    shared = nn.Embedding(5, 4)
    model = nn.ModuleDict({side: nn.ModuleDict({"tokens": shared, "positions": nn.Embedding(5, 4)}) for side in ("in", "out")})
    in_int8(model)
    assert isinstance(model["in"]["tokens"], Int8Embedding)
    assert model["in"]["tokens"] is model["out"]["tokens"]
    assert isinstance(model["in"]["positions"], nn.Embedding)
