"""The maps are the weights that the formula gives, asking for them changes nothing, and they can be read once drawn."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import shutil
import subprocess

import pytest
import torch
from lxml import html
from PIL import Image

from tests.support.commands import assert_user_error, recipes_with
from tests.support.configurations import composed, model_config
from tests.support.models import random_model
from translator.config.building import from_hydra, to_yaml
from translator.config.commands import PlotAttentionConfig
from translator.data.batching import collate
from translator.inference.attention_page import attention_page
from translator.inference.attention_pictures import panels_of
from translator.inference.attention_views import View
from translator.inference.translator import Translator
from translator.model.attention import padding_mask
from translator.model.attention_maps import attention_maps, dead_heads, relative_entropy
from translator.runs.plots import draw_attention, draw_summary, png, undrawn
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.text.tokenizer import EOS_ID, PAD_ID

SOURCE, TARGET = [5, 9, 14, 7, 21, EOS_ID], [8, 30, 6, EOS_ID]
NASTY = "It's \"so\": $5, $(whoami), ${x} and `ls`, 50 % \\n; a=b, [c] #1"


@pytest.mark.parametrize("changes", [
    {}, {"norm": "post"}, {"positions": "rotary"}, {"positions": "relative"},
    {"encoder_window": 1, "decoder_window": (None, 2)}, {"encoder_heads": [3, 1], "cross_heads": [2, 4]}])
def test_maps_are_the_weights_of_every_layer(changes):
    model = random_model(model_config(**changes))
    batch = collate([SOURCE], [TARGET])
    before = model(batch.source, batch.target_in)
    maps = attention_maps(model, SOURCE, TARGET)
    assert torch.equal(model(batch.source, batch.target_in), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    for of_layers, heads, shape in (
            (maps.encoder, model.config.heads("encoder"), (6, 6)), (maps.decoder, model.config.heads("decoder"), (4, 4)),
            (maps.cross, model.config.heads("cross"), (4, 6))):
        assert [weights.shape for weights in of_layers] == [(count, *shape) for count in heads]
        for weights in of_layers:
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    assert not any(weights.triu(1).any() for weights in maps.decoder)

    def attended(layer, residual, x):
        return residual.norm(x) if model.config.norm == "pre" else x

    mask = padding_mask(batch.source, PAD_ID)
    with torch.no_grad():
        x = model.source_embedding(batch.source)
        for layer, weights in zip(model.encoder, maps.encoder, strict=True):
            expected = layer.self_attention(attended(layer, layer.around_attention, x), mask=mask, need_weights=True)[1]
            torch.testing.assert_close(weights, expected[0])
            x = layer(x, mask)
        memory, x = model.encode(batch.source), model.target_embedding(batch.target_in)
        for layer, own, cross in zip(model.decoder, maps.decoder, maps.cross, strict=True):
            expected = layer.self_attention(attended(layer, layer.around_self, x), need_weights=True)[1]
            torch.testing.assert_close(own, expected[0])
            x, expected = layer(x, memory, mask, need_weights=True)
            torch.testing.assert_close(cross, expected[0])


def test_a_picture_shows_the_weights_and_the_pieces():
    weights = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0))
    source, target = ["▁$x", "^{$"], ["▁a", "\\frac", "مرحبا"]
    figure = draw_attention({"one": weights[0], "two": weights[1]}, source, target, columns=1)
    png(figure)  # no piece is taken for a formula
    for axes, drawn, name in zip(figure.axes, weights, ("one", "two"), strict=False):
        assert torch.equal(torch.from_numpy(axes.images[0].get_array().data), drawn)
        assert [label.get_text() for label in axes.get_xticklabels()] == source
        assert [label.get_text() for label in axes.get_yticklabels()] == target
        assert axes.get_title() == name


@pytest.mark.parametrize(("pieces", "heads"), [(1, 1), (2, 4), (9, 2), (30, 8)])
def test_no_text_of_a_picture_is_cut(pieces, heads):
    panels = {f"layer 2, head {number}": torch.ones(pieces, pieces) for number in range(10, 10 + heads)}
    labels = ["▁Donaudampf"] * pieces
    figure = draw_attention(panels, labels, labels, columns=heads, title="Self-attention: " + "from each piece to all " * 4)
    png(figure)
    texts = [figure._suptitle, *(text for axes in figure.axes for text in (
        axes.title, *axes.get_xticklabels(), *axes.get_yticklabels()))]
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 <= box.y0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    titles = sorted((axes.title.get_window_extent() for axes in figure.axes[:heads]), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(titles))


def test_what_no_font_has_is_shown_by_its_code_point(recwarn):
    unassigned = "\U0003fff0"
    assert undrawn(["ab", f"c{unassigned}"]) == unassigned
    figure = draw_attention({"": torch.ones(1, 1)}, [f"▁{unassigned}"], ["é"], columns=1)
    png(figure)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["▁U+3FFF0"]
    assert not recwarn.list


def test_more_than_can_be_shown_is_refused():
    panels = {str(number): torch.ones(300, 300) for number in range(8)}
    with pytest.raises(UserError, match="shorter sentence"):
        draw_attention(panels, ["x"] * 300, ["y"] * 300, columns=8)


def test_a_model_that_is_loaded_has_no_dropout(run_folder, tmp_path):
    folder = RunFolder(shutil.copytree(run_folder, tmp_path / "tiny"))
    config = folder.load_config()
    model = dataclasses.replace(config.model, dropout=0.5)
    folder.config_file.write_text(to_yaml(dataclasses.replace(config, model=model)))
    [model] = Translator(folder.path, device="cpu").models
    first, second = (attention_maps(model, [5, 6, EOS_ID], [7, EOS_ID]) for _ in range(2))
    torch.testing.assert_close(first.cross, second.cross, rtol=0, atol=0)


def test_every_attention_as_a_picture(script, run_folder, tmp_path):
    plot = ("plot_attention", f"run={run_folder}", "device=cpu", "search=greedy", "search.max_length=6", f"output={tmp_path}")
    result = script(*plot, TRANSLATE_TEXT="She sees.")
    assert result.returncode == 0, result.stderr
    files = [tmp_path / f"{name}.png" for name in ("summary", "encoder", "decoder", "cross", "alignment")]
    assert result.stdout.decode().split() == [str(file) for file in (*files, tmp_path / "attention.html")]
    sizes = {}
    for file in files:
        with Image.open(file) as picture:
            picture.load()
            sizes[file.stem] = picture.size
    result = script(*plot, "text=She sees.", "target=N")
    assert result.returncode == 0, result.stderr
    with Image.open(tmp_path / "cross.png") as shorter:
        assert shorter.size[1] < sizes["cross"][1]
    shutil.rmtree(tmp_path)
    result = script(*plot, "target=Nein.", "search.max_source_tokens=9999", TRANSLATE_TEXT="word " * 300)
    assert_user_error(result, "shorter sentence")
    assert not tmp_path.exists()


def test_entropy_ranges_from_one_key_to_all_alike():
    alike = torch.ones(6, 6).tril()
    alike /= alike.sum(dim=1, keepdim=True)
    between = torch.tensor([[0.5, 0.5, 0, 0, 0, 0]] * 6) * 0.9 + 0.1 / 6
    entropy = relative_entropy(torch.stack([torch.eye(6), alike, between]))
    torch.testing.assert_close(entropy[:2], torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert 0 < entropy[2] < 1


def test_dead_heads_give_all_queries_the_same():
    alike, last, aligns = torch.full((7, 6), 1 / 6), torch.zeros(7, 6), torch.eye(7)[:, :6]
    last[:, 5] = 1
    assert dead_heads(torch.stack([aligns, alike, last])) == {1: None, 2: 5}
    assert dead_heads(torch.full((1, 4, 4), 0.25)) == {}  # too short to judge by


def test_the_page_shows_the_weights_from_within_itself():
    weights = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0)).softmax(dim=2)
    view = View("Cross", "from rows to columns", [weights, weights[:1]], ["▁a", "</script><b>", "</s>"], ["▁$x", "مرحبا"])
    page = html.fromstring(attention_page({"Source": "<i>"}, [view]).decode())
    assert not page.xpath("//@src | //@href | //b | //i")
    assert "default-src 'none'" in page.xpath("//meta/@content")[-1]
    [shown] = json.loads(page.get_element_by_id("data").text)
    assert (shown["rows"], shown["columns"]) == (view.rows, view.columns)
    assert [len(layer) for layer in shown["layers"]] == [2, 1]
    levels = torch.tensor(list(base64.b64decode(shown["layers"][0][1]["weights"]))).view(3, 2)
    torch.testing.assert_close(levels / 255, weights[1], atol=1 / 255, rtol=0)


def test_the_summary_names_texts_and_dead_heads():
    alike = torch.full((1, 6, 6), 1 / 6)
    pieces = ["▁$x", "^{$", "c", "d", "e", "</s>"]
    figure = draw_summary(
        alike[0], pieces, pieces, {"cross": [relative_entropy(alike)]}, {"cross": [dead_heads(alike)]},
        above=["Source: $x^{$", "Translation: " + "word " * 50], below=["Dead: layer 1, head 1"])
    png(figure)
    assert figure._suptitle.get_text().startswith("Source: $x^{$\nTranslation: word")
    assert figure._supxlabel.get_text() == "Dead: layer 1, head 1"
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in (figure._suptitle, figure._supxlabel))


def test_text_is_taken_to_the_letter(monkeypatch):
    monkeypatch.setenv("TRANSLATE_TEXT", NASTY)
    monkeypatch.setenv("TRANSLATE_TARGET", NASTY[::-1])
    config = from_hydra(PlotAttentionConfig, composed("plot_attention"))
    assert (config.text, config.target) == (NASTY, NASTY[::-1])
    monkeypatch.setenv("TRANSLATE_TEXT", " ")  # which make sets where there is no TEXT
    with pytest.raises(UserError, match=r'text: is empty. .* (TEXT|text)="\.\.\."'):
        from_hydra(PlotAttentionConfig, composed("plot_attention", "target=x"))
    monkeypatch.setenv("TRANSLATE_TEXT", "caf\udce9")  # as Python reads bytes that are not UTF-8
    with pytest.raises(UserError, match="text: is not UTF-8"):
        from_hydra(PlotAttentionConfig, composed("plot_attention"))


def test_make_hands_text_and_target_on(tmp_path):
    """The Makefile's own recipe, with `printenv` in the place of the script."""
    recipes_with(tmp_path, 'printf "%s\\n" "$@"; printenv TRANSLATE_TEXT TRANSLATE_TARGET')
    shown = subprocess.run(
        ["make", "-s", "plot-attention", "RUN=runs/my run", f"TEXT={NASTY}", "TARGET=$(b)"], cwd=tmp_path, capture_output=True,
        text=True, check=True).stdout
    assert shown.splitlines() == ["scripts/plot_attention.py", "run=runs/my run", NASTY, "$(b)"]


def test_panels_of_self_attention_tell_the_spans():
    weights, spans = torch.rand(1, 2, 3, 3), torch.tensor([[1.24, 8.0]])
    assert list(panels_of(weights, spans)) == ["layer 1, head 1, span 1.2", "layer 1, head 2, span 8.0"]
    assert list(panels_of(weights, None)) == ["layer 1, head 1", "layer 1, head 2"]
    assert torch.equal(panels_of(weights, None)["layer 1, head 2"], weights[0, 1])
