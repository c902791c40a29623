"""Stacks of layers against torch's own, and what each sublayer does to its input."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.support.configurations import model_config
from tests.support.models import causal_mask, copy_layer_into_torch
from translator.model.attention import MultiHeadAttention
from translator.model.attention_paths import CPU_FUSED_FROM
from translator.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm

LAYERS = 3
SHAPES = list(itertools.product(("pre", "post"), ("relu", "gelu"), (7, CPU_FUSED_FROM + 2)))


def randomised(module: nn.Module) -> nn.Module:
    """Every vector random too, so that no norm or bias goes untested."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.5)
    return module


def real_tokens(length: int) -> Tensor:
    return torch.arange(length) < torch.tensor([length, length - 3, 1])[:, None]


@pytest.mark.parametrize(("norm", "activation", "length"), SHAPES)
def test_encoder_stack_equals_torch_transformer_encoder(norm, activation, length):
    torch.manual_seed(0)
    config = model_config(norm=norm, activation=activation)
    layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, activation, batch_first=True, norm_first=norm == "pre")
    theirs = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    ours = nn.ModuleList(randomised(EncoderLayer(config, None)) for _ in range(LAYERS))
    with torch.no_grad():
        for mine, other in zip(ours, theirs.layers, strict=True):
            copy_layer_into_torch(mine, other)
    x, real = torch.randn(3, length, 32), real_tokens(length)
    expected = theirs(x, src_key_padding_mask=~real)
    for layer in ours:
        x = layer(x, real[:, None, None])
    torch.testing.assert_close(x[real], expected[real], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("norm", "activation", "length"), SHAPES)
def test_decoder_stack_equals_torch_transformer_decoder(norm, activation, length):
    torch.manual_seed(0)
    config = model_config(norm=norm, activation=activation)
    layer = nn.TransformerDecoderLayer(32, 4, 48, 0.0, activation, batch_first=True, norm_first=norm == "pre")
    theirs = nn.TransformerDecoder(layer, LAYERS)
    ours = nn.ModuleList(randomised(DecoderLayer(config, None)) for _ in range(LAYERS))
    with torch.no_grad():
        for mine, other in zip(ours, theirs.layers, strict=True):
            copy_layer_into_torch(mine, other)
    y, memory, real = torch.randn(3, length, 32), torch.randn(3, length + 4, 32), real_tokens(length + 4)
    expected = theirs(y, memory, tgt_mask=~causal_mask(length, length), memory_key_padding_mask=~real)
    for layer in ours:
        y, weights = layer(y, memory, real[:, None, None], need_weights=True)
        assert weights.shape == (3, 4, length, length + 4)
        assert not weights[1, :, :, -3:].any()
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)


def test_residual_dropout_drops_or_scales_the_sublayer_alone():
    torch.manual_seed(0)
    around, post = PreNorm(model_config(dropout=0.25)), PostNorm(model_config(dropout=0.25))
    x, inside = torch.randn(4, 5, 32), torch.randn(4, 5, 32)
    torch.manual_seed(1)
    left = around.leave(x, inside)
    torch.manual_seed(1)
    torch.testing.assert_close(post.leave(x, inside), post.norm(left))
    kept = (left - x) / inside
    assert 0.15 < (kept.abs() < 1e-3).float().mean() < 0.35
    torch.testing.assert_close(kept[kept.abs() > 1e-3], torch.full_like(kept[kept.abs() > 1e-3], 1 / 0.75), atol=1e-3, rtol=0)
    around.eval()
    assert torch.equal(around.leave(x, inside), x + inside)


def test_norm_comes_first_or_last():
    x = torch.randn(2, 3, 32)
    pre, post = PreNorm(model_config()), PostNorm(model_config())
    torch.testing.assert_close(pre.leave(x, 2 * pre.enter(x)), x + 2 * pre.norm(x))
    torch.testing.assert_close(post.leave(x, 2 * post.enter(x)), post.norm(3 * x))


def test_activation_dropout_acts_between_the_two_maps():
    torch.manual_seed(0)
    layer = FeedForward(model_config(d_ff=32, activation_dropout=0.25))
    nn.init.eye_(layer.outer.weight)
    nn.init.zeros_(layer.outer.bias)
    x = torch.randn(8, 9, 32)
    active = layer.inner(x).relu()
    kept = (layer(x) / active)[active > 1e-2]
    assert 0.15 < (kept == 0).float().mean() < 0.35
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept[kept != 0], 1 / 0.75))
    torch.testing.assert_close(layer.eval()(x), active)


def test_attention_dropout_drops_whole_weights_of_a_head():
    torch.manual_seed(0)
    attention = MultiHeadAttention(32, 4, dropout=0.25)
    nn.init.eye_(attention.W_o.weight)
    nn.init.zeros_(attention.W_o.bias)
    x, memory = torch.randn(50, 3, 32), torch.randn(50, 1, 32)  # one key: its weight is 1
    kept = (attention(x, memory)[0] / attention.W_v(memory)).unflatten(-1, (4, 8))
    assert ((kept == 0).all(-1) | (kept != 0).all(-1)).all()
    assert 0.15 < (kept == 0).float().mean() < 0.35
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept[kept != 0], 1 / 0.75), atol=1e-4, rtol=1e-4)


def test_a_layers_dropouts_are_the_configured_ones():
    layer = DecoderLayer(model_config(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3), None)
    assert layer.self_attention.dropout == layer.cross_attention.dropout == 0.2
    assert layer.feed_forward.dropout == 0.3
    assert {r.dropout for r in (layer.around_self, layer.around_cross, layer.around_feed_forward)} == {0.1}
