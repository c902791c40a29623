"""The recurrent unit: its formula, and what a decoder of it has and lacks."""

from __future__ import annotations

import pytest
import torch

from tests.support.configurations import model_config, run_config, search_config
from tests.support.models import batch_of, random_model, updater_of
from translator.compression.importance import head_importance
from translator.data.batching import pad
from translator.model.attention_maps import attention_maps
from translator.model.inference_layers import convert
from translator.model.ssru import SSRU
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.search.engine import as_one, search


def test_ssru_is_the_formula():
    torch.manual_seed(0)
    unit, x, state = SSRU(8), torch.randn(2, 5, 8), torch.zeros(2, 8)
    (forget_map, new_map), (forget_bias, new_bias) = unit.joined.weight.chunk(2), unit.joined.bias.chunk(2)
    outputs, _ = unit(x)
    for t in range(5):
        forget = torch.sigmoid(x[:, t] @ forget_map.T + forget_bias)
        state = forget * state + (1 - forget) * (x[:, t] @ new_map.T + new_bias)
        torch.testing.assert_close(outputs[:, t], torch.relu(state))


def test_later_tokens_do_not_change_earlier_outputs():
    torch.manual_seed(0)
    unit, x = SSRU(8), torch.randn(2, 5, 8, requires_grad=True)
    unit(x)[0][:, 2].sum().backward()
    assert not x.grad[:, 3:].any()
    assert x.grad[:, 0].any()


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.INT8])
def test_steps_agree_with_float32_in_other_precisions(precision):
    model = random_model(model_config(decoder="ssru"))
    source, target = torch.randint(4, 40, (3, 6)), torch.randint(4, 40, (3, 9))
    full = model(source, target).detach()
    model = convert(model.for_decoding(), precision)
    with torch.inference_mode():
        state = model.start(model.encode(source), source != 0)
        steps = [model.output(model.decode_step(target[:, t : t + 1], state))[:, :40].float() for t in range(9)]
    assert state.recurrent[0].held.dtype == torch.float32
    assert (torch.stack(steps, dim=1) - full).abs().mean() < 0.05 * full.std()


def test_an_ssru_has_no_maps_of_decoder_self_attention():
    model = random_model(model_config(decoder="ssru", adaptive_span=4))
    maps = attention_maps(model, [5, 6, 3], [7, 8, 9, 3])
    assert maps.decoder == []
    assert (maps.encoder[0].shape, maps.cross[0].shape) == ((4, 3, 3), (4, 4, 3))
    assert list(model.spans()) == ["encoder"]


def test_search_with_attention_gives_what_each_sentence_gives():
    models = [random_model(model_config(decoder=decoder), seed=seed) for seed, decoder in enumerate(("ssru", "attention"))]
    ensemble = as_one([model.for_decoding() for model in models])
    sources = [torch.randint(4, 40, (length,)).tolist() for length in (9, 3, 6)]
    for beam_size in (1, 4):
        options = search_config(beam_size=beam_size, n_best=beam_size)
        together = search(ensemble, pad(sources), options)
        alone = [found for source in sources for found in search(ensemble, pad([source]), options)]
        assert [[h.ids for h in found] for found in together] == [[h.ids for h in found] for found in alone]


@pytest.mark.parametrize("option", ["decoder_window=4", "decoder_heads=[2,2]"])
def test_options_of_decoder_attention_are_refused(option):
    with pytest.raises(UserError, match=r"model\.decoder_(window|heads): needs model\.decoder=attention"):
        run_config("model.decoder=ssru", f"model.{option}")


def test_pruning_leaves_the_unit_whole():
    importance = head_importance(random_model(model_config(decoder="ssru")), [batch_of((5, 7))])
    assert set(importance) == {"encoder", "cross"}


def test_an_update_in_bf16_keeps_the_loss_finite():
    updater = updater_of(precision=Precision.BF16, decoder="ssru")
    losses = [updater.step([batch_of((5, 7), (9, 30))], 1e-3).loss for _ in range(8)]
    assert losses[-1] < losses[0]
