"""The layers against torch's own, and the contracts of step-wise decoding, padding, tying and dropout."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.support.configurations import model_config, run_config
from tests.support.models import MODEL_VARIANTS, attention_of_torch, causal_mask, copy_layer_into_torch, random_model
from tests.support.paths import ROOT
from translator.model import source_parts
from translator.model.attention import MultiHeadAttention, scaled_dot_product
from translator.model.attention_paths import CPU_FUSED_FROM
from translator.model.inference_layers import OUTPUTS_TOGETHER, convert
from translator.model.layers import DecoderLayer, EncoderLayer, GatedFeedForward
from translator.model.transformer import Transformer
from translator.runtime.device import Precision


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 9))
    source[1, 5:] = 0
    return source, target


def copy_residual(ours: nn.Module, norm: nn.LayerNorm) -> None:
    ours.norm.load_state_dict(norm.state_dict())


@pytest.mark.parametrize(("norm", "activation"), list(itertools.product(("pre", "post"), ("relu", "gelu"))))
def test_layers_equal_torch_transformer_layers(norm, activation):
    torch.manual_seed(0)
    config = model_config(norm=norm, activation=activation)
    options = {"dropout": 0.0, "activation": activation, "norm_first": norm == "pre", "batch_first": True}
    theirs = nn.TransformerEncoderLayer(32, 4, 48, **options)
    ours = EncoderLayer(config, None)
    ours.self_attention = attention_of_torch(theirs.self_attn)
    ours.feed_forward.inner, ours.feed_forward.outer = theirs.linear1, theirs.linear2
    copy_residual(ours.around_attention, theirs.norm1)
    copy_residual(ours.around_feed_forward, theirs.norm2)
    x, real = torch.randn(3, 7, 32), torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    expected = theirs(x, src_key_padding_mask=~real)
    torch.testing.assert_close(ours(x, real[:, None, None])[real], expected[real], atol=2e-6, rtol=1e-4)

    their_decoder = nn.TransformerDecoderLayer(32, 4, 48, **options)
    decoder = DecoderLayer(config, None)
    decoder.self_attention = attention_of_torch(their_decoder.self_attn, causal=True)
    decoder.cross_attention = attention_of_torch(their_decoder.multihead_attn)
    decoder.feed_forward.inner, decoder.feed_forward.outer = their_decoder.linear1, their_decoder.linear2
    for residual, layer_norm in zip(
            (decoder.around_self, decoder.around_cross, decoder.around_feed_forward),
            (their_decoder.norm1, their_decoder.norm2, their_decoder.norm3), strict=True):
        copy_residual(residual, layer_norm)
    y = torch.randn(3, 5, 32)
    expected = their_decoder(y, x, tgt_mask=~causal_mask(5, 5), memory_key_padding_mask=~real)
    torch.testing.assert_close(decoder(y, x, real[:, None, None])[0], expected, atol=2e-6, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's own shortcut, of no concern here
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_whole_model_equals_torch_transformer(norm, pair):
    source, target = pair
    model = random_model(model_config(norm=norm))
    theirs = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    theirs.encoder.norm, theirs.decoder.norm = model.encoder_norm, model.decoder_norm
    with torch.no_grad():
        for ours_side, theirs_side in ((model.encoder, theirs.encoder.layers), (model.decoder, theirs.decoder.layers)):
            for ours_layer, their_layer in zip(ours_side, theirs_side, strict=True):
                copy_layer_into_torch(ours_layer, their_layer)
    real = source != 0
    hidden = theirs(
        model.source_embedding(source), model.target_embedding(target), tgt_mask=~causal_mask(9, 9),
        src_key_padding_mask=~real, memory_key_padding_mask=~real)
    expected = hidden @ model.output.weight.T
    torch.testing.assert_close(model(source, target), expected, atol=1e-4, rtol=1e-4)


def test_swiglu_is_its_formula():
    layer = GatedFeedForward(model_config(activation="swiglu"))
    x = torch.randn(2, 3, 32)
    gate = layer.gate(x)
    torch.testing.assert_close(layer(x), layer.outer(gate * torch.sigmoid(gate) * layer.inner(x)))


@pytest.mark.parametrize("changes", MODEL_VARIANTS)
def test_steps_with_a_cache_equal_the_full_pass(changes, pair):
    source, target = pair
    model = random_model(model_config(**changes))
    full = model(source, target)
    state = model.start(model.encode(source), source != 0)
    steps = [model.output(model.decode_step(target[:, t : t + 1], state)) for t in range(target.size(1))]
    torch.testing.assert_close(torch.stack(steps, dim=1), full, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("changes", [{}, {"positions": "relative", "encoder_window": 3, "decoder_window": 3}])
@pytest.mark.parametrize("length", [7, CPU_FUSED_FROM])  # with the formula, and where other paths would be faster
def test_another_score_is_used_on_every_path(changes, length, converted):
    model, uses = random_model(model_config(**changes)), []

    def bounded(queries, keys):
        uses.append(keys.size(2))
        return scaled_dot_product(queries, keys).tanh() * 3

    source, target = torch.randint(4, 40, (2, length)), torch.randint(4, 40, (2, length))
    usual = model(source, target)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.score = bounded
    full = model(source, target)
    assert uses == [length] * 6
    assert not torch.allclose(full, usual, atol=1e-3)
    full.sum().backward()
    if converted:
        model.for_decoding()
        torch.testing.assert_close(model(source, target), full, atol=2e-5, rtol=1e-4)
    with torch.inference_mode():
        state = model.start(model.encode(source), source != 0)
        steps = [model.output(model.decode_step(target[:, t : t + 1], state))[:, :40] for t in range(9 if length > 9 else 7)]
        torch.testing.assert_close(torch.stack(steps, dim=1), full[:, : len(steps)].detach(), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", MODEL_VARIANTS[::3])
def test_hypotheses_share_a_source_and_survive_reordering(changes, pair):
    source, target = pair
    model = random_model(model_config(**changes))
    state = model.start(model.encode(source), source != 0)
    model.decode_step(target[:, :1], state)
    state.reorder(torch.zeros(3, 4, dtype=torch.long))  # one hypothesis becomes four
    hypotheses = target[:, None, :1].expand(-1, 4, -1)
    for t in range(5):
        tokens = torch.randint(4, 40, (len(source), 4))
        hypotheses = torch.cat([hypotheses, tokens[:, :, None]], dim=2)
        logits = model.output(model.decode_step(tokens, state)).unflatten(0, tokens.shape)
        for k in range(4):
            torch.testing.assert_close(logits[:, k], model(source, hypotheses[:, k])[:, -1], atol=2e-5, rtol=1e-4)
        parents = torch.randint(0, 4, (len(source), 4))
        state.reorder(parents)
        hypotheses = hypotheses.gather(1, parents[:, :, None].expand_as(hypotheses))
        if t == 2:  # sentence 1 is done; the others change places
            keep = torch.tensor([2, 0])
            state.select(keep)
            hypotheses, source = hypotheses[keep], source[keep]


@pytest.mark.parametrize("at_once", [1, 14])
@pytest.mark.parametrize("changes", MODEL_VARIANTS[::3])
def test_encoding_in_parts_changes_nothing(changes, at_once, pair, monkeypatch):
    source, target = pair
    model = random_model(model_config(**changes))
    whole, logits = model.encode(source), model(source, target)
    real = source != 0
    of_whole = model.start(whole, real).memory
    monkeypatch.setattr(source_parts, "TOKENS_IN_PART", at_once)
    parts = model.encode(source)
    assert parts.shape == whole.shape
    torch.testing.assert_close(parts[real], whole[real], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(model(source, target), logits, atol=2e-5, rtol=1e-4)
    for held, expected in zip(model.start(whole, real).memory, of_whole, strict=True):  # keys and values of each layer
        for each, other in zip(held, expected, strict=True):
            assert each.is_contiguous()
            torch.testing.assert_close(each.transpose(1, 2)[real], other.transpose(1, 2)[real], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", MODEL_VARIANTS)
def test_neighbours_and_padding_change_nothing(changes, pair):
    source, target = pair
    model = random_model(model_config(**changes))
    together = model(source, target)
    torch.testing.assert_close(model(source[1:2, :5], target[1:2, :6])[0], together[1, :6], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", MODEL_VARIANTS)
def test_targets_may_go_over_the_same_sources_again(changes, pair):
    source, target = pair
    model, others = random_model(model_config(**changes)), target.flip(1)
    apart = [model(source, targets) for targets in (target, others)]
    torch.testing.assert_close(model(source, torch.cat([target, others])), torch.cat(apart), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("changes", MODEL_VARIANTS)
def test_real_tokens_alone_give_what_they_give_among_padding(changes, training, pair):
    source, target = pair
    model = random_model(model_config(**changes, dropout=0.0)).train(training)
    target = torch.cat([target, target.flip(1)])  # over the same sources again
    real = torch.arange(9) < torch.tensor([9, 4, 6, 1, 9, 7])[:, None]
    given = [model(source, target)[real], model.output(model.hidden(source, target, real))[:, :40]]
    torch.testing.assert_close(given[1], given[0], atol=2e-5, rtol=1e-4)
    weighed = torch.randn(given[0].shape)
    among, alone = (
        torch.autograd.grad((logits * weighed).sum(), list(model.parameters()), allow_unused=True) for logits in given)
    torch.testing.assert_close(alone, among, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_padded_vocabulary_entries_have_no_probability(precision, bias, pair):
    model = random_model(model_config(output_bias=bias))
    hidden = model.hidden(*pair, None).detach()
    expected = model.output(hidden).log_softmax(dim=-1)
    tolerance = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.2}[precision]
    model = convert(model.for_decoding(), Precision(precision))
    some = model.log_probabilities(hidden.to(torch.bfloat16 if precision == "bf16" else torch.float32), slice(3, 20))
    assert some.dtype == torch.float32
    assert some.size(1) % OUTPUTS_TOGETHER == 0
    assert (some[:, 40:] == -torch.inf).all()
    torch.testing.assert_close(some.exp().sum(dim=1), torch.ones(17))
    torch.testing.assert_close(some[:, :40], expected[3:20], atol=tolerance, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
def test_any_length_works(positions):
    model = random_model(model_config(positions=positions))
    with torch.inference_mode():
        assert model(torch.randint(4, 40, (1, 1100)), torch.randint(4, 40, (1, 700))).isfinite().all()


def test_bf16_autocast_stays_close(pair):
    model = random_model()
    exact = model(*pair)
    with Precision.BF16.autocast(torch.device("cpu")):
        half = model(*pair)
    torch.testing.assert_close(half.float(), exact, atol=0.15, rtol=0.1)
    weights = list(model.parameters())
    gradients, wanted = (torch.autograd.grad(logits.float().logsumexp(-1).sum(), weights) for logits in (half, exact))
    for gradient, of_exact in zip(gradients, wanted, strict=True):
        assert (gradient - of_exact).norm() < 0.1 * of_exact.norm() + 1e-3


def test_tying_shares_what_it_says():
    three, two, none = (Transformer(model_config(tied=tied), 40, 40) for tied in ("all", "target", "none"))
    assert three.source_embedding.tokens is three.target_embedding.tokens is three.output.table
    assert two.source_embedding.tokens is not two.target_embedding.tokens
    assert two.target_embedding.tokens is two.output.table
    assert none.target_embedding.tokens.weight is not none.output.weight
    counts = [sum(p.numel() for p in model.parameters()) for model in (three, two, none)]
    assert counts[1] - counts[0] == counts[2] - counts[1] == 40 * 32


@pytest.mark.parametrize("where", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_alone(where, pair):
    model = random_model(model_config(**{where: 0.4}))
    torch.testing.assert_close(model(*pair), model(*pair))
    model.train()
    assert not torch.allclose(model(*pair), model(*pair))


def test_initial_weights_follow_their_source_and_the_seed():
    torch.manual_seed(3)
    model = Transformer(model_config(d_model=64, d_ff=128), 2000, 2000)
    assert model.output.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    bound = (6 / (64 + 128)) ** 0.5  # Xavier uniform
    inner = model.encoder[0].feed_forward.inner
    assert 0.95 * bound < inner.weight.abs().max().item() <= bound
    assert not inner.bias.any()
    torch.manual_seed(3)
    again = Transformer(model_config(d_model=64, d_ff=128), 2000, 2000)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("name", "vocab", "millions"), [("tiny", 10_000, 2.6), ("base", 37_000, 63), ("big", 37_000, 214)])
def test_presets_have_the_sizes_of_their_papers(name, vocab, millions):
    with torch.device("meta"):
        model = Transformer(run_config(f"model={name}").model, vocab, vocab)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


def test_attention_weights_of_each_layer_on_request(pair):
    source, target = pair
    model = random_model()
    mask = (source != 0)[:, None, None]
    hidden, weights = model.decode(target, model.encode(source), mask, weights_of=range(len(model.decoder)))
    torch.testing.assert_close(hidden, model.decode(target, model.encode(source), mask)[0])
    _, [last] = model.decode(target, model.encode(source), mask, weights_of=[len(model.decoder) - 1])
    torch.testing.assert_close(last, weights[-1])
    assert [w.shape for w in weights] == [(3, 4, 9, 7)] * 2
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(3, 4, 9))
    assert not weights[0][1, :, :, 5:].any()


def test_every_preset_is_tested_here():
    assert {path.stem for path in (ROOT / "conf" / "model").glob("*.yaml")} == {"tiny", "small", "base", "big"}


def test_the_number_of_hypotheses_may_change_at_any_step(pair):
    source, target = pair
    model = random_model()
    state = model.start(model.encode(source), source != 0)
    hypotheses = target[:, None, :1]
    model.decode_step(hypotheses[:, :, -1], state)
    for count in (4, 2, 5, 1):
        parents = torch.randint(0, hypotheses.size(1), (3, count))
        state.reorder(parents)
        hypotheses = hypotheses.gather(1, parents[:, :, None].expand(-1, -1, hypotheses.size(2)))
        tokens = torch.randint(4, 40, (3, count))
        hypotheses = torch.cat([hypotheses, tokens[:, :, None]], dim=2)
        logits = model.output(model.decode_step(tokens, state)).unflatten(0, tokens.shape)
        for k in range(count):
            torch.testing.assert_close(logits[:, k], model(source, hypotheses[:, k])[:, -1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("windows", "reach"), [(1, 2), ([1, 3], 4), ([2, None], 19), (None, 19)])
def test_windows_of_the_encoders_layers_add_up(windows, reach):
    model = random_model(model_config(encoder_window=windows, positions="rotary"))
    embedded = model.source_embedding(torch.randint(4, 40, (1, 20))).detach().requires_grad_()
    x = embedded
    for layer in model.encoder:
        x = layer(x, torch.ones(1, 1, 1, 20, dtype=torch.bool))
    x[0, 0].square().sum().backward()
    assert embedded.grad[0].any(-1).nonzero().max().item() == reach


def test_target_tokens_see_no_later_ones(pair):
    source, target = pair
    model = random_model()
    changed = target.clone()
    changed[:, 5] = (target[:, 5] - 4 + 1) % 36 + 4
    before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=1e-5)
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all(-1).any()


def test_a_source_of_padding_alone_keeps_everything_finite(pair):
    source, target = pair
    source[0] = 0
    model = random_model()
    logits = model(source, target)
    logits.logsumexp(-1).sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_sides_of_unlike_depth_and_vocabulary():
    model = Transformer(model_config(encoder_layers=3, decoder_layers=1, tied="target"), 30, 50)
    assert (len(model.encoder), len(model.decoder)) == (3, 1)
    assert model(torch.full((2, 4), 29), torch.full((2, 3), 49)).shape == (2, 3, 50)


def test_embeddings_start_with_unit_variance():
    torch.manual_seed(0)
    model = Transformer(model_config(d_model=64, positions="rotary"), 2000, 2000).eval()
    assert model.source_embedding(torch.arange(2000)[None]).std().item() == pytest.approx(1, rel=0.02)
    attention = model.decoder[0].cross_attention
    bound = (6 / (64 + 64)) ** 0.5
    for linear in (attention.W_q, attention.W_k, attention.W_v, attention.W_o):
        assert 0.95 * bound < linear.weight.abs().max().item() <= bound
        assert not linear.bias.any()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_both_sides_end_normalised(norm, pair):
    source, target = pair
    model = Transformer(model_config(norm=norm), 40, 40)
    memory = model.encode(source)
    hidden, _ = model.decode(target, memory, (source != 0)[:, None, None])
    for x in (memory, hidden):
        torch.testing.assert_close(x.mean(-1), torch.zeros(x.shape[:2]), atol=1e-5, rtol=0)
        torch.testing.assert_close(x.var(-1, correction=0), torch.ones(x.shape[:2]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("tied", ["all", "target", "none"])
def test_initial_weights_depend_on_the_seed_only(tied):
    models = []  # all kept, so that each lies elsewhere
    for _ in range(12):
        torch.manual_seed(5)
        models.append(Transformer(model_config(tied=tied), 40, 40))
    for model in models[1:]:
        assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), model.parameters(), strict=True))
