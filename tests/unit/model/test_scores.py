"""Scores other than the dot product: their formula, and that they are the ones of the options."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch

from tests.support.configurations import model_config
from tests.support.models import random_model
from translator.config.options import ModelConfig
from translator.model import attention
from translator.model.attention import MultiHeadAttention, compute_attention, scaled_dot_product
from translator.model.scores import SCORES, AdditiveScore, build_score


def test_every_score_of_the_options_is_registered():
    assert tuple(SCORES) == get_args(get_type_hints(ModelConfig)["attention"])


def test_additive_score_is_the_formula():
    torch.manual_seed(0)
    queries, keys, score = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), AdditiveScore(3, 8)
    scores = score(queries, keys)
    assert scores.shape == (2, 3, 4, 5)
    expected = score.v[1] @ torch.tanh(queries[1, 1, 2] + keys[1, 1, 4])
    torch.testing.assert_close(scores[1, 1, 2, 4], expected)


@pytest.mark.parametrize("name", SCORES)
def test_a_model_uses_the_score_of_its_options(name):
    model = random_model(model_config(attention=name))
    for layer in model.decoder:
        for part in (layer.self_attention, layer.cross_attention):
            assert type(part.score) is type(build_score(model.config))


def test_gate_scales_the_heads_before_the_output_map():
    torch.manual_seed(0)
    gated, plain = MultiHeadAttention(16, 2, gate=True), MultiHeadAttention(16, 2)
    plain.load_state_dict({name: weight for name, weight in gated.state_dict().items() if "W_g" not in name})
    x = torch.randn(2, 5, 16)
    plain.W_o, gate = torch.nn.Identity(), gated.W_g(x).sigmoid()
    torch.testing.assert_close(gated(x)[0], gated.W_o(gate * plain(x)[0]))


def test_an_edited_formula_turns_the_fast_paths_off(monkeypatch):
    """A score that someone has edited must be used everywhere: the kernel would go on with the published one."""
    queries, keys, values = torch.randn(3, 1, 2, 600, 8).unbind()

    def sharper(queries, keys):
        return 3 * original(queries, keys)

    original = scaled_dot_product
    before, _ = compute_attention(queries, keys, values, score=original)
    monkeypatch.setattr(attention, "scaled_dot_product", sharper)
    monkeypatch.setattr(attention.scaled_dot_product_attention, "__kwdefaults__", {
        **attention.scaled_dot_product_attention.__kwdefaults__, "score": sharper})
    assert not attention._formula_agrees_with_kernel()
    monkeypatch.setattr(attention, "FORMULA_AS_PUBLISHED", False)
    after, _ = compute_attention(queries, keys, values, score=sharper)
    expected, _ = attention.scaled_dot_product_attention(queries, keys, values, score=sharper)
    torch.testing.assert_close(after, expected)
    assert not torch.allclose(after, before)
