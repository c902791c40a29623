"""Each scheme's defining property, and lengths beyond any seen."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from tests.support.configurations import model_config
from tests.support.models import random_model
from translator.config.options import ModelConfig
from translator.model import incremental
from translator.model.attention import compute_attention
from translator.model.positions import (
    NUM_BUCKETS,
    RAMP,
    SCHEMES,
    AdaptiveSpan,
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
)
from translator.runtime.errors import UserError


def test_every_scheme_of_the_options_is_registered():
    assert tuple(SCHEMES) == get_args(get_type_hints(ModelConfig)["positions"])


def test_sinusoidal_is_the_formula_at_any_length():
    positions = SinusoidalPositions(16)
    encoding = positions(torch.zeros(1, 3000, 16))[0]
    for position, i in ((0, 0), (1, 3), (700, 5), (2999, 7)):
        angle = position / 10_000 ** (2 * i / 16)
        assert encoding[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-3)
        assert encoding[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-3)


def test_a_table_that_a_search_has_made_longer_serves_training():
    positions = SinusoidalPositions(16)
    with torch.inference_mode():
        positions(torch.zeros(1, 3, 16))
    assert not positions.table.is_inference()


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
        return (rotary(q, torch.tensor([query_at])) * rotary(k, torch.tensor([key_at]))).sum().item()

    assert dot(7, 3) == pytest.approx(dot(2004, 2000), abs=1e-3)
    assert dot(7, 3) != pytest.approx(dot(8, 3), abs=1e-3)
    assert rotary(q, torch.tensor([11])).norm().item() == pytest.approx(q.norm().item(), rel=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_bias_depends_on_distance_and_saturates(causal):
    bias = RelativeBias(2, causal=causal)
    nn.init.normal_(bias.bias.weight)
    at = torch.arange(400)
    table = bias(at, at)[0]
    assert table.shape == (2, 400, 400)
    for distance in (0, 1, 5, 100, -1, -5, -100):
        diagonal = table.diagonal(-distance, dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))
    torch.testing.assert_close(table[:, 399, 0], table[:, 399, 150])
    assert not torch.allclose(table[:, 399, 399], table[:, 399, 398])
    torch.testing.assert_close(bias(at[-1:], at)[0, :, 0], table[:, 399])
    if not causal:
        assert not torch.allclose(table[:, 10, 5], table[:, 5, 10])


def test_the_sinusoidal_table_grows_when_a_longer_sentence_comes():
    torch.manual_seed(0)
    grown, fresh = SinusoidalPositions(16), SinusoidalPositions(16)
    with torch.inference_mode():  # as in a validation between two updates
        grown(torch.zeros(1, 512, 16))
        grown(torch.zeros(1, 3000, 16))
    x = torch.zeros(1, 3000, 16, requires_grad=True)
    torch.testing.assert_close(grown(x), fresh(x))
    grown(x).sum().backward()
    assert "table" not in grown.state_dict()  # computed, not saved


def test_sinusoidal_positions_in_bf16_match_up_to_rounding():
    positions = SinusoidalPositions(16)
    half = positions(torch.zeros(1, 3000, 16, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), positions(torch.zeros(1, 3000, 16)), atol=4e-3, rtol=0)


@pytest.mark.parametrize("distance", [0, 1, 40, 2999])
def test_rotary_matches_the_papers_rotation_matrix(distance):
    torch.manual_seed(0)
    x = torch.randn(1, 1, 1, 8)
    turned = RotaryPositions(8)(x, torch.tensor([distance]))[0, 0, 0]
    for i in range(4):
        angle = distance * 10_000 ** (-2 * i / 8)
        pair = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]) @ x[0, 0, 0, [i, i + 4]]
        torch.testing.assert_close(turned[[i, i + 4]], pair, atol=1e-3, rtol=0)


def test_rotary_in_bf16_still_tells_neighbours_apart_far_out():
    rotary = RotaryPositions(8)
    x = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    turned = rotary(x, torch.tensor([2998, 2999]))
    assert turned.dtype == torch.bfloat16
    assert not torch.equal(turned[:, :, 0], turned[:, :, 1])


@pytest.mark.parametrize("causal", [False, True])
def test_relative_bias_far_beyond_512_is_the_last_bucket(causal):
    bias = RelativeBias(2, causal=causal)
    nn.init.normal_(bias.bias.weight)
    row = bias(torch.tensor([2999]), torch.arange(3000))[0, :, 0]
    torch.testing.assert_close(row[:, : 3000 - 128], row[:, :1].expand(-1, 3000 - 128))
    assert not torch.equal(row[:, 0], row[:, -60])
    last = NUM_BUCKETS - 1 if causal else NUM_BUCKETS // 2 - 1
    torch.testing.assert_close(row[:, 0], bias.bias.weight[last])


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_are_all_used_and_never_narrow(causal):
    bias = RelativeBias(1, causal=causal)
    distance = torch.arange(0 if causal else -300, 301)
    buckets = bias._bucket(distance)
    used = set(buckets.tolist())
    assert used <= set(range(32))
    assert len(used) >= 31  # both directions have a bucket for distance 0; one of the two is idle
    for side in (buckets[distance >= 0], buckets[distance < 0].flip(0)):
        assert (side.diff() >= 0).all()


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_alibi_is_a_slope_times_the_distance(heads):
    at = torch.arange(50)
    bias = AlibiBias(heads)(at[-3:], at)[0]
    assert bias.shape == (heads, 3, 50)
    for head in range(heads):
        slope = 2 ** (-8 * (head + 1) / heads)
        assert bias[head, 0, 40].item() == pytest.approx(-7 * slope, rel=1e-6)
        assert bias[head, 0, 49].item() == pytest.approx(-2 * slope, rel=1e-6)  # a later key, as an earlier one


def test_adaptive_span_multiplies_weights_by_its_mask():
    torch.manual_seed(0)
    span, at = AdaptiveSpan(2, 16), torch.arange(60)
    with torch.no_grad():
        span.s.copy_(torch.tensor([-1.0, 1.5]))
    scores = torch.randn(1, 2, 60, 60)
    distance = (at[:, None] - at).abs()
    kept = ((RAMP + 16 * span.s.sigmoid()[:, None, None] - distance) / RAMP).clamp(0, 1) * scores.exp()
    weights = (scores + span(at, at)).softmax(dim=-1)
    torch.testing.assert_close(weights, kept / kept.sum(-1, keepdim=True))
    beyond = distance > span.reach()
    assert beyond.any()
    assert not weights[:, :, beyond].any()
    assert weights[:, 1, distance == span.reach()].all()


def test_adaptive_span_learns_from_loss_and_penalty():
    span, at = AdaptiveSpan(2, 16), torch.arange(30)
    weights = span(at, at).softmax(dim=-1)
    (weights * (at[:, None] - at).abs()).sum().backward()
    assert (span.s.grad > 0).all()  # a longer span gives more weight to distant keys
    assert (torch.autograd.grad(span.spans().mean(), span.s)[0] > 0).all()


def test_decoding_reads_no_keys_beyond_the_span(monkeypatch):
    read: list[int] = []

    def recorded(queries, keys, values, **options):
        read.append(keys.size(2))
        return compute_attention(queries, keys, values, **options)

    model = random_model(model_config(adaptive_span=6, decoder_layers=1)).for_decoding()
    attention = model.decoder[0].self_attention
    reach, length = attention.reach(), 40
    assert attention.window == reach < 15
    source, target = torch.randint(4, 40, (2, 50)), torch.randint(4, 40, (2, length))
    monkeypatch.setattr(incremental, "compute_attention", recorded)
    with torch.inference_mode():
        full, _ = model.decode(target, model.encode(source), None)
        state = model.start(model.encode(source), source != 0)
        steps = [model.decode_step(target[:, t : t + 1], state) for t in range(length)]
    torch.testing.assert_close(torch.stack(steps, dim=1), full, atol=2e-5, rtol=1e-4)
    assert read[::2] == [min(t + 1, reach + 1) for t in range(length)]  # between them cross-attention, which reads all
    assert set(read[1::2]) == {50}
