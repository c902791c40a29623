"""A model without some heads, layers or pieces computes what the whole one does without what they add."""

from __future__ import annotations

import pytest
import torch

from tests.support.configurations import model_config
from tests.support.models import batch_of, random_model
from translator.compression.importance import choose_heads, head_importance
from translator.compression.parts import ATTENTIONS, Parts
from translator.model.transformer import Transformer
from translator.model.weights import load_into, weights_of
from translator.runtime.errors import UserError

HEADS = {"encoder": [[0, 3], [1, 2, 3]], "decoder": [[2], [0, 1, 2, 3]], "cross": [[1, 2], [3]]}
VARIANTS = [
    {"positions": "relative", "norm": "post", "decoder_window": 2},
    {"positions": "rotary", "attention": "additive", "attention_gate": True, "adaptive_span": 2, "tied": "none"}]


def model_of(parts: Parts, vocab: int = 40) -> Transformer:
    model = Transformer(parts.config, vocab, vocab)
    load_into(model, parts.weights, "x")
    return model.eval()


def silence(model: Transformer, kind: str, layer: int, heads: set[int]) -> None:
    """Let nothing read these heads."""
    side, part = ATTENTIONS[kind]
    attention = getattr(getattr(model, side)[layer], part)
    with torch.no_grad():
        attention.W_o.weight.unflatten(1, (attention.num_heads, -1))[:, list(heads)] = 0


@pytest.mark.parametrize("changes", VARIANTS)
def test_removed_heads_equal_heads_whose_outputs_are_zero(changes):
    model, batch = random_model(model_config(**changes)), batch_of((7, 6), (5, 6), (7, 2))
    smaller = model_of(Parts(model.config, {n: w.clone() for n, w in weights_of(model).items()}).with_heads(HEADS))
    assert [layer.cross_attention.num_heads for layer in smaller.decoder] == [2, 1]
    for kind, of_layers in HEADS.items():
        for layer, kept in enumerate(of_layers):
            silence(model, kind, layer, set(range(4)) - set(kept))
    expected = model(batch.source, batch.target_in)
    torch.testing.assert_close(smaller(batch.source, batch.target_in), expected, atol=2e-5, rtol=1e-4)
    for converted in (smaller, smaller.for_decoding()):
        with torch.inference_mode():
            state = converted.start(converted.encode(batch.source), batch.source != 0)
            steps = [converted.output(converted.decode_step(batch.target_in[:, t : t + 1], state))[:, :40] for t in range(6)]
        torch.testing.assert_close(torch.stack(steps, dim=1), expected, atol=2e-5, rtol=1e-4)


def test_heads_with_slopes_by_number_are_refused():
    model = random_model(model_config(positions="alibi"))
    with pytest.raises(UserError, match=r"heads: model\.positions=alibi"):
        Parts(model.config, weights_of(model)).with_heads(HEADS)


def test_kept_layers_bring_their_windows_and_heads():
    config = model_config(
        encoder_layers=3, decoder_layers=3, encoder_window=[1, 2, None], decoder_heads=[1, 2, 3], cross_heads=[4, 3, 2])
    model = random_model(config)
    parts = Parts(config, weights_of(model)).with_layers("encoder", [0, 2]).with_layers("decoder", [1])
    assert (parts.config.encoder_layers, parts.config.encoder_window) == (2, (1, None))
    assert (parts.config.decoder_layers, parts.config.decoder_heads, parts.config.cross_heads) == (1, (2,), (3,))
    smaller, batch = model_of(parts), batch_of((6, 5), (4, 5))
    model.encoder, model.decoder = model.encoder[::2], model.decoder[1:2]
    torch.testing.assert_close(smaller(batch.source, batch.target_in), model(batch.source, batch.target_in))
    with pytest.raises(UserError, match=r"encoder_layers=\[0, 3\]: the model has no layer 3, only 0 to 2"):
        Parts(config, weights_of(model)).with_layers("encoder", [0, 3])


@pytest.mark.parametrize("changes", [{"output_bias": True}, {"tied": "target"}, {"tied": "none", "output_bias": True}])
def test_kept_pieces_keep_their_logits(changes):
    model, ids = random_model(model_config(**changes)), torch.tensor([0, 1, 2, 3, 30, 7, 8])
    smaller = model_of(Parts(model.config, weights_of(model)).with_pieces(ids, ids), vocab=7)
    source, target = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6, 4]])
    torch.testing.assert_close(smaller(source, target), model(ids[source], ids[target])[..., ids])


def test_importance_is_the_derivative_by_a_factor_of_the_head():
    model, batch = random_model(model_config(positions="rotary")), batch_of((6, 5), (4, 6), (7, 3))
    found = head_importance(model, [batch])
    side, part, layer, step = "decoder", "cross_attention", 1, 1e-2
    attention = getattr(getattr(model, side)[layer], part)
    columns = attention.W_o.weight.data.unflatten(1, (4, -1))

    def losses() -> torch.Tensor:
        logits = model(batch.source, batch.target_in)
        return torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), batch.target_out, ignore_index=0, reduction="none").sum(dim=1).double()

    expected = torch.zeros(4)
    for head in range(4):
        whole = columns[:, head].clone()
        above, below = (columns[:, head].copy_(whole * factor) is not None and losses() for factor in (1 + step, 1 - step))
        columns[:, head] = whole
        expected[head] = ((above - below) / (2 * step)).abs().sum()  # over sentences
    torch.testing.assert_close(found["cross"][layer], expected / expected.norm(), atol=1e-3, rtol=1e-2)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_least_important_heads_go_and_each_attention_keeps_one():
    importance = {"encoder": [torch.tensor([0.1, 0.2, 0.3])], "decoder": [torch.tensor([0.15, 0.9, 0.8])],
                  "cross": [torch.tensor([0.5, 0.6])]}
    assert choose_heads(importance, 0.25) == {"encoder": [[1, 2]], "decoder": [[1, 2]], "cross": [[0, 1]]}
    assert choose_heads(importance, 0.5) == {"encoder": [[2]], "decoder": [[1, 2]], "cross": [[1]]}
    assert choose_heads(importance, 0.0)["encoder"] == [[0, 1, 2]]
    with pytest.raises(UserError, match=r"heads=0\.8: each attention keeps a head, so at most 0\.62 of them"):
        choose_heads(importance, 0.8)
