"""Pictures of every attention of a model for one sentence: the command `make plot-attention`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from translator.config.commands import PlotAttentionConfig
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.model.attention_maps import attention_maps
from translator.runs.finding import chosen_runs
from translator.runs.plots import draw_attention, png, undrawn
from translator.runs.run_folder import require_not_of_a_run
from translator.runtime.atomic_files import require_no_link, require_writable, write_bytes
from translator.runtime.console import log
from translator.runtime.device import tune_cpu
from translator.runtime.errors import UserError
from translator.text.tokenizer import BOS_ID


def draw_attentions(config: PlotAttentionConfig) -> None:
    """Draw encoder, decoder and cross-attention, a panel for each layer and head, and the alignment, to PNG files.

    Prints their paths.
    """
    tune_cpu()
    [run] = chosen_runs(config.run, config.runs)
    folder = Path(config.output) if config.output else require_no_link(run / "attention")
    require_not_of_a_run(folder)
    require_writable(folder)
    translator = Translator(run, device=config.device)
    [model] = translator.models
    source, target = _pair(translator, config)
    maps, [rating] = attention_maps(model, source, target), translator.rate([(source, target)], translator.search)
    of_source, of_target = translator.source_tokenizer.pieces(source), translator.target_tokenizer.pieces(target)
    spans = model.spans()
    pictures = {
        "encoder": ("Encoder self-attention: from each source piece (row) to all (columns)",
                    maps.encoder, of_source, of_source),
        "decoder": ("Decoder self-attention: from each output piece being chosen (row) to those before it (columns)",
                    maps.decoder, [*translator.target_tokenizer.pieces([BOS_ID]), *of_target[:-1]], of_target),
        "cross": ("Cross-attention: from each output piece being chosen (row) to the source (columns)",
                  maps.cross, of_source, of_target)}
    images = {}
    for name, (title, weights, columns, rows) in pictures.items():
        if not weights:  # an SSRU has none
            continue
        panels = panels_of(weights, spans.get(name))
        heads = max(map(len, weights))
        images[folder / f"{name}.png"] = png(draw_attention(panels, columns, rows, columns=heads, title=title))
    title = "Alignment: the source pieces (columns) that each output piece (row) translates"
    images[folder / "alignment.png"] = png(draw_attention({"": rating.alignment}, of_source, of_target, columns=1, title=title))
    folder.mkdir(parents=True, exist_ok=True)
    for path, image in images.items():
        write_bytes(path, image)
        print(path)
    if missing := undrawn([*of_source, *of_target]):
        log(f"no installed font has {missing}: shown by code points; a font such as Noto Sans CJK has most")


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
