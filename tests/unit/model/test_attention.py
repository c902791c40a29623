"""The formula, the fused path and torch's own modules agree; masks forbid what they say; nothing becomes NaN."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.models import attention_of_torch, causal_mask
from translator.model.active_hypotheses import ActiveHypotheses
from translator.model.attention import MultiHeadAttention, padding_mask, scaled_dot_product_attention, window_mask
from translator.model.attention_paths import CPU_FUSED_FROM, fused_attention
from translator.model.cpu_operations import VECTORS, WORTH_LENGTHENING
from translator.model.incremental import self_attention_step
from translator.model.inference_layers import join_maps
from translator.model.kv_cache import KeyValueCache, Past
from translator.model.positions import NO_WEIGHT, AdaptiveSpan, RelativeBias, RotaryPositions

B, H, K, D = 3, 4, 8, 32


def qkv(query_length: int, key_length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((B, H, query_length, K), (B, H, key_length, K), (B, H, key_length, K))
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
    return q, k, v


def some_mask(query_length: int, key_length: int, *, padding: bool, causal: bool, window: int | None) -> Tensor | None:
    parts = []
    if padding:
        parts.append(torch.arange(key_length) < torch.tensor([key_length, key_length - 2, 1])[:, None, None, None])
    if causal:
        parts.append(causal_mask(query_length, key_length)[None, None])
    if window is not None:
        parts.append(window_mask(query_length, key_length, window=window, causal=causal)[None, None])
    if not parts:
        return None
    mask = torch.ones(B, 1, query_length, key_length, dtype=torch.bool)
    for part in parts:
        mask = mask & part
    return mask


@pytest.mark.parametrize(
    ("padding", "causal", "window", "biased", "cross"),
    [case for case in itertools.product((False, True), (False, True), (None, 2), (False, True), (False, True))
     if not (case[1] and case[4])])
def test_formula_and_fused_path_agree_with_torch(padding, causal, window, biased, cross):
    length, key_length = (5, 9) if cross else (7, 7)
    q, k, v = qkv(length, key_length)
    mask = some_mask(length, key_length, padding=padding, causal=causal, window=window)
    bias = torch.randn(1, H, length, key_length) if biased else None
    expected_mask = torch.zeros(B, H, length, key_length) if bias is None else bias.expand(B, -1, -1, -1)
    if mask is not None:
        expected_mask = expected_mask.masked_fill(~mask, -torch.inf)
        seeing = mask.any(-1, keepdim=True)
        expected_mask = expected_mask.masked_fill(~seeing, 0.0)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=expected_mask)
    if mask is not None:
        expected = expected.masked_fill(~seeing, 0.0)
    output, weights = scaled_dot_product_attention(q, k, v, mask=mask, bias=bias)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(fused_attention(q, k, v, mask=mask, bias=bias), expected)
    torch.testing.assert_close(weights @ v, output)


@pytest.mark.parametrize("key_length", [1, 3, 7, 8, 9, 15, 16, 17])
def test_rows_shorter_than_a_processor_likes_are_weighed_alike(key_length, monkeypatch):
    monkeypatch.setitem(VECTORS, torch.backends.cpu.get_cpu_capability(), 16)
    q, k, v = qkv(WORTH_LENGTHENING, key_length)
    ours, _ = scaled_dot_product_attention(q, k, v)
    theirs = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(x.square().mean(), (q, k, v)) for x in (ours, theirs)))


def test_causal_flag_is_the_causal_mask():
    q, k, v = qkv(6, 6)
    torch.testing.assert_close(fused_attention(q, k, v, causal=True), fused_attention(q, k, v, mask=causal_mask(6, 6)))


@pytest.mark.parametrize("attend", [lambda *a, **o: scaled_dot_product_attention(*a, **o)[0], fused_attention])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length", [5, 50])  # of which the softmax is taken as it is, and with the rows lengthened
def test_rows_that_may_see_nothing_are_zero_forward_and_backward(attend, dtype, biased, length):
    q, k, v = qkv(length, 6, dtype)
    mask = torch.rand(B, 1, length, 6) < 0.5
    mask[0] = False  # a sentence of padding alone
    mask[1, :, 2] = False
    bias = torch.randn(1, H, length, 6) if biased else None
    output = attend(q, k, v, mask=mask, bias=bias)
    assert not output[0].any()
    assert not output[1, :, 2].any()
    assert output[2].any()
    output.square().sum().backward()
    for tensor in (output, q.grad, k.grad, v.grad):
        assert tensor.isfinite().all()
    assert not q.grad[0].any()
    assert not k.grad[0].any()
    assert not v.grad[0].any()
    assert not q.grad[1, :, 2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_farther_than_any_span_is_no_nan(dtype):
    """A query of padding may be allowed the real keys only, all of them beyond its span."""
    q, k, v = qkv(30, 30, dtype)
    mask = (torch.arange(30) < 5)[None, None, None]
    bias = AdaptiveSpan(H, 2)(torch.arange(30), torch.arange(30)).detach()
    assert (bias[..., -1, :5] == NO_WEIGHT).all()
    formula, _ = scaled_dot_product_attention(q, k, v, mask=mask, bias=bias)
    fused = fused_attention(q, k, v, mask=mask, bias=bias)
    assert fused[:, :, -1].any()  # not the zeros, or on some GPUs NaN, of a row of -inf
    torch.testing.assert_close(fused[:, :, :5], formula[:, :, :5], atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("length", [7, CPU_FUSED_FROM + 3])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_equals_torch_multihead_attention(length, kind):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    ours = attention_of_torch(theirs, causal=kind == "causal")
    x = torch.randn(B, length, D)
    memory = torch.randn(B, length + 2, D) if kind == "cross" else x
    real = torch.arange(memory.size(1)) < torch.tensor([memory.size(1), memory.size(1) - 3, 2])[:, None]
    expected, expected_weights = theirs(
        x, memory, memory, key_padding_mask=~real, average_attn_weights=False,
        attn_mask=~causal_mask(length, length) if kind == "causal" else None)
    options = {"mask": real[:, None, None, :]}
    output, none = ours(x, memory if kind == "cross" else None, **options)
    assert none is None
    torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-4)
    same, weights = ours(x, memory if kind == "cross" else None, **options, need_weights=True)
    torch.testing.assert_close(same, output, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(weights, expected_weights, atol=2e-6, rtol=1e-4)


def variants() -> list[dict[str, object]]:
    return [
        {}, {"window": 0}, {"window": 3}, {"rotary": RotaryPositions(D // H)},
        {"relative": RelativeBias(H, causal=True), "window": 5}]


@pytest.mark.parametrize("options", variants())
@pytest.mark.parametrize("length", [9, CPU_FUSED_FROM + 3])
def test_causality_the_future_has_no_influence(options, length):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, causal=True, **options)
    x = torch.randn(1, length, D)
    changed = x.clone()
    changed[:, 5:] = torch.randn(1, length - 5, D)
    before, after = attention(x)[0], attention(changed)[0]
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [12, CPU_FUSED_FROM + 3])
def test_window_bounds_influence_exactly(causal, length):
    torch.manual_seed(0)
    window, changed_at = 3, 6
    attention = MultiHeadAttention(D, H, causal=causal, window=window)
    x = torch.randn(1, length, D)
    changed = x.clone()
    changed[:, changed_at] += 1
    moved = (attention(x)[0] - attention(changed)[0]).abs().amax(-1)[0] > 1e-5
    expected = {i for i in range(length) if abs(i - changed_at) <= window and (i >= changed_at or not causal)}
    assert set(moved.nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("options", [{}, {"rotary": RotaryPositions(D // H)}, {"relative": True}])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "length"), [(0, 256), (5, 300), (64, 257), (70, 281)])
def test_taking_a_window_in_blocks_changes_nothing(options, causal, window, length):
    torch.manual_seed(0)
    if "relative" in options:
        options = {"relative": RelativeBias(H, causal=causal)}
        nn.init.normal_(options["relative"].bias.weight)
    attention = MultiHeadAttention(D, H, causal=causal, window=window, **options)
    x = torch.randn(3, length, D, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([length, length - 100, 0])[:, None, None, None]
    for keys in (None, mask):
        blocks = attention(x, mask=keys)[0]
        whole = attention(x, mask=keys, need_weights=True)[0]
        torch.testing.assert_close(blocks, whole, atol=2e-6, rtol=1e-4)
        got, expected = (torch.autograd.grad(output.square().sum(), x)[0] for output in (blocks, whole))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_memory_of_a_window_grows_with_the_length_alone(causal):
    attention = MultiHeadAttention(D, H, causal=causal, window=16)

    def kept(length: int) -> int:
        sizes: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
                lambda t: sizes.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t):
            attention(torch.randn(1, length, D, requires_grad=True))
        return sum(sizes.values())

    assert kept(4096) < 4.2 * kept(1024)


def test_window_as_wide_as_the_sentence_is_global():
    torch.manual_seed(0)
    wide, full = MultiHeadAttention(D, H, window=8), MultiHeadAttention(D, H)
    full.load_state_dict(wide.state_dict())
    x = torch.randn(2, 9, D)
    torch.testing.assert_close(wide(x)[0], full(x)[0])


def test_padding_changes_nothing():
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H)
    x = torch.randn(1, 5, D)
    ids = torch.tensor([[4, 5, 6, 7, 8, 0, 0]])
    padded = torch.cat([x, torch.randn(1, 2, D)], dim=1)
    torch.testing.assert_close(attention(padded, mask=padding_mask(ids, 0))[0][:, :5], attention(x)[0])


def decode_with_random_ancestors(attention: MultiHeadAttention, steps: int) -> None:
    """Each step's output is the causal pass's over the hypothesis's own tokens, as hypotheses and sentences come and go."""
    cache, past = KeyValueCache(), Past(torch.device("cpu"))
    tokens = torch.empty(3, 1, 0, D)  # (B, hypotheses, T, D)
    for t in range(steps):
        if t:
            count = int(torch.randint(1, 5, ()))
            parents = torch.randint(0, tokens.size(1), (len(tokens), count))
            past.reorder(parents)
            if (entries := past.drop_unseen()) is not None:
                cache.keep(entries)
            tokens = tokens.gather(1, parents[:, :, None, None].expand(-1, -1, t, D))
        if t == steps // 2:
            keep = torch.tensor([2, 0])
            cache.select(keep)
            past.select(keep)
            tokens = tokens[keep]
        newest = torch.randn(*tokens.shape[:2], D)
        tokens = torch.cat([tokens, newest[:, :, None]], dim=2)
        past.append(newest.size(1))
        expected = attention(tokens.flatten(0, 1))[0][:, -1].view_as(newest)
        hypotheses = ActiveHypotheses(*newest.shape[:2])
        stepped = self_attention_step(attention, newest.flatten(0, 1), hypotheses, cache, past).view_as(newest)
        torch.testing.assert_close(stepped, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", variants())
@pytest.mark.parametrize("joined", [False, True])
def test_cached_steps_equal_the_full_pass_under_reordering(joined, options):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, causal=True, **options)
    if joined:
        join_maps(attention, "W_q", "W_k", "W_v")
    if attention.relative is not None:
        nn.init.normal_(attention.relative.bias.weight)
    with torch.inference_mode():
        decode_with_random_ancestors(attention, 40)  # a cache has to grow for so many, and the fused path takes over


def test_cache_grows_with_length_not_with_reorderings():
    past, length = Past(torch.device("cpu")), 200
    for step in range(length + 1):
        past.reorder(torch.zeros(2, 5, dtype=torch.long))  # all go on from the first
        past.drop_unseen()
        if step < length:
            past.append(5)
    assert (past.bias == 0).sum(dim=-1).unique().tolist() == [length]
    assert past.room < 2 * length


def test_dropout_acts_in_training_alone():
    attention = MultiHeadAttention(D, H, dropout=0.5)
    x = torch.randn(2, 6, D)
    torch.manual_seed(1)
    assert not torch.allclose(attention(x)[0], attention(x)[0])
    attention.eval()
    torch.testing.assert_close(attention(x)[0], attention(x)[0])


def both_paths() -> list[int]:
    return [9, CPU_FUSED_FROM + 3]


@pytest.mark.parametrize("length", both_paths())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [
    {}, {"window": 3}, {"rotary": RotaryPositions(D // H)}, {"relative": RelativeBias(H, causal=True)}])
def test_asking_for_weights_changes_no_output(length, causal, options):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, causal=causal, **options)
    if attention.relative is not None:
        nn.init.normal_(attention.relative.bias.weight)
    x = torch.randn(2, length, D)
    output, weights = attention(x, need_weights=True)
    torch.testing.assert_close(attention(x)[0], output, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, H, length))


@pytest.mark.parametrize("length", both_paths())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_only_sentence_gives_bias_and_no_gradient(length, dtype, causal):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, causal=causal).to(dtype)
    nn.init.normal_(attention.W_o.bias)
    x = torch.randn(2, length, D).to(dtype).requires_grad_()
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool)
    mask[0] = False
    output = attention(x, mask=mask)[0]
    assert torch.equal(output[0], attention.W_o.bias.expand_as(output[0]))
    output.square().sum().backward()
    assert not x.grad[0].any()
    assert x.grad[1].any()
    for tensor in (output, x.grad, *(p.grad for p in attention.parameters())):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("length", both_paths())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 2])
def test_no_gradient_at_all_passes_the_window(length, causal, window):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, causal=causal, window=window)
    x = torch.randn(1, length, D, requires_grad=True)
    attention(x)[0][0, 5].sum().backward()
    reached = set(x.grad[0].any(-1).nonzero().flatten().tolist())
    assert reached == set(range(5 - window, 6 if causal else 6 + window))


@pytest.mark.parametrize("length", both_paths())
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_that_reaches_both_ends_is_global(length, causal):
    torch.manual_seed(0)
    wide, full = MultiHeadAttention(D, H, causal=causal, window=length - 1), MultiHeadAttention(D, H, causal=causal)
    full.load_state_dict(wide.state_dict())
    narrow = MultiHeadAttention(D, H, causal=causal, window=length - 2)
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(2, length, D)
    torch.testing.assert_close(wide(x)[0], full(x)[0], atol=2e-6, rtol=1e-4)
    assert not torch.equal(narrow(x)[0][:, -1], wide(x)[0][:, -1])  # the last token misses the first


@pytest.mark.parametrize("options", variants())
def test_greedy_steps_equal_the_full_pass(options):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, causal=True, **options).eval()
    if attention.relative is not None:
        nn.init.normal_(attention.relative.bias.weight)
    x = torch.randn(2, CPU_FUSED_FROM + 6, D)
    cache, past = KeyValueCache(), Past(torch.device("cpu"))
    steps = []
    with torch.inference_mode():
        for token in x.split(1, dim=1):
            past.reorder(torch.zeros(2, 1, dtype=torch.long))
            past.append(1)
            assert past.bias is None  # one hypothesis sees all that came before
            steps.append(self_attention_step(attention, token[:, 0], ActiveHypotheses(2, 1), cache, past))
        torch.testing.assert_close(torch.stack(steps, dim=1), attention(x)[0], atol=1e-5, rtol=1e-4)


def test_cache_keeps_tokens_as_it_grows_and_selects():
    cache, past = KeyValueCache(), Past(torch.device("cpu"))
    cache.select(torch.tensor([0, 0]))  # nothing decoded yet: nothing to do
    tokens = torch.randn(2, 200, 3, H, 1, K)  # keys and values, of 200 steps, of 3 sentences
    places = set()
    for t in range(200):
        past.append(1)
        cache.write(tokens[:, t], past)
        places.add(cache.held.data_ptr())
    expected = tokens.squeeze(-2).permute(0, 2, 3, 1, 4)
    assert torch.equal(cache.held[..., :200, :], expected)
    assert not cache.held[..., 200:, :].any()  # what nobody attends to must not be NaN
    assert len(places) <= 6  # grown by half, not anew at every step
    sentences = torch.tensor([2, 0])
    cache.select(sentences)
    past.append(1)
    cache.write(torch.zeros(2, 2, H, 1, K), past)
    assert torch.equal(cache.held[..., :200, :], expected[:, sentences])


def test_fused_dropout_drops_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, H, dropout=0.5)
    x = torch.randn(1, 1, D).expand(8, 2 * CPU_FUSED_FROM, D)  # equal keys: each head's output is its weights' sum
    dropped, whole = attention(x)[0], attention.eval()(x)[0]
    assert dropped.std(dim=(0, 1)).max() > 1e-3
    torch.testing.assert_close(dropped.mean(dim=(0, 1)), whole.mean(dim=(0, 1)), atol=1e-3, rtol=1e-2)
