"""Pictures of every attention of a model for one sentence, and a page to look into them: `make plot-attention`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from translator.config.commands import PlotAttentionConfig
from translator.inference.attention_page import attention_page
from translator.inference.attention_views import View, pieces_of, views_of
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.model.attention_maps import dead_heads, relative_entropy
from translator.runs.finding import chosen_runs
from translator.runs.plots import draw_attention, draw_summary, png, undrawn
from translator.runs.run_folder import require_not_of_a_run
from translator.runtime.atomic_files import require_no_link, require_writable, write_bytes
from translator.runtime.console import log
from translator.runtime.device import tune_cpu
from translator.runtime.errors import UserError


def draw_attentions(config: PlotAttentionConfig) -> None:
    """Draw encoder, decoder and cross-attention, a panel for each layer and head, the alignment, and a summary, to PNG files.

    Beside them goes a page that shows the weights of any piece. Prints their paths.
    """
    tune_cpu()
    [run] = chosen_runs(config.run, config.runs)
    folder = Path(config.output) if config.output else require_no_link(run / "attention")
    require_not_of_a_run(folder)
    require_writable(folder)
    translator = Translator(run, device=config.device)
    [model] = translator.models
    source, target = _pair(translator, config)
    [rating] = translator.rate([(source, target)], translator.search)
    views, spans = views_of(translator, source, target), model.spans()
    pieces = pieces_of(translator, source, target)
    alignment = View("Alignment", "the source pieces (columns) that each output piece (row) translates",
                     [rating.alignment[None]], *pieces, of_heads=False)
    mean = View("Mean of the heads that align", "from each output piece (row) to the source pieces (columns)",
                [model.alignment_heads.aligned(rating.attention[None])], *pieces, of_heads=False)
    texts = {"Source": config.text, "Translation": translator.target_tokenizer.decode([target])[0]}
    maps = {f"{name}.png": draw_view(view, spans.get(name)) for name, view in {**views, "alignment": alignment}.items()}
    files = {"summary.png": summary(texts, mean, views), **maps,
             "attention.html": attention_page(texts, [mean, *views.values(), alignment])}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_bytes(folder / name, content)
        print(folder / name)
    if missing := undrawn(itertools.chain(*pieces)):
        log(f"no installed font has {missing}: shown by code points; a font such as Noto Sans CJK has most")


def draw_view(view: View, spans: Sequence[Tensor] | None) -> bytes:
    """Draw a panel for each layer and head."""
    panels = panels_of(view.weights, spans) if view.of_heads else {"": view.weights[0][0]}
    heads = max(map(len, view.weights))
    return png(draw_attention(panels, view.columns, view.rows, columns=heads, title=f"{view.name}: {view.title}"))


def summary(texts: Mapping[str, str], mean: View, views: Mapping[str, View]) -> bytes:
    """Draw the mean of the heads that align beside the entropy of every head, with the texts above and dead heads below."""
    dead = {kind: [dead_heads(layer) for layer in view.weights] for kind, view in views.items()}
    named = [
        f"{kind}, layer {layer}, head {head + 1}: {'all alike' if key is None else f'always {views[kind].columns[key]}'}"
        for kind, layers in dead.items() for layer, heads in enumerate(layers, start=1) for head, key in heads.items()]
    return png(draw_summary(
        mean.weights[0][0], mean.columns, mean.rows,
        {kind: [relative_entropy(layer) for layer in view.weights] for kind, view in views.items()}, dead,
        above=[f"{name}: {text}" for name, text in texts.items()],
        below=["Entropy from 0, each piece attends to one, to 1, to all alike.",
               f"Dead for this sentence (crosses): {'; '.join(named) or 'none'}."]))


def panels_of(weights: Sequence[Tensor], spans: Sequence[Tensor] | None) -> dict[str, Tensor | None]:
    """Return the weights (T, S) of each layer and head by title, with the spans of self-attention if any.

    weights: (H, T, S) of each layer, spans: (H,). None where a layer has fewer heads than another.
    """
    panels: dict[str, Tensor | None] = {}
    for layer, head in itertools.product(range(len(weights)), range(max(map(len, weights)))):
        there = head < len(weights[layer])
        span = f", span {spans[layer][head]:.1f}" if spans is not None and there else ""
        panels[f"layer {layer + 1}, head {head + 1}{span}"] = weights[layer][head] if there else None
    return panels


def _pair(translator: Translator, config: PlotAttentionConfig) -> tuple[list[int], list[int]]:
    """Return the ids of the sentence and of its translation, EOS last."""
    options = dataclasses.replace(config.search, split_sentences="never")
    if config.target:
        plan = translator.plan(Request(config.text), options)
        if isinstance(plan, str):
            raise UserError(f"text: {plan}")
        source, target = plan[0].ids, translator.target_tokenizer.encode([config.target])[0]
    else:
        [translation] = translator.translate([config.text], options)
        if not translation.pairs:
            raise UserError(f"text: {translation.refused or 'nothing in it can be translated'}")
        source, target = map(list, translation.pairs[0])
    positions = translator.planner.positions
    if positions is not None and max(len(source), len(target)) > positions:
        raise UserError(f"text and target may have model.max_positions={positions} tokens: give shorter ones")
    return source, target
