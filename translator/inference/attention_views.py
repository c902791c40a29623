"""The attentions of a model for one sentence and its translation, with the pieces that they join."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from translator.inference.translator import Translator
from translator.model.attention_maps import attention_maps
from translator.text.tokenizer import BOS_ID


@dataclass(frozen=True)
class View:
    """One kind of attention, layer by layer, and the pieces that it joins."""

    name: str
    title: str  # what rows and columns are
    weights: list[Tensor]  # (H, T, S) of each layer, from row T to column S
    rows: list[str]
    columns: list[str]
    of_heads: bool = True  # or one map of several heads together


def views_of(translator: Translator, source: list[int], target: list[int]) -> dict[str, View]:
    """Return each kind of attention that the model has, by name; an SSRU has none in the decoder."""
    maps = attention_maps(translator.models[0], source, target)
    of_target, of_source = pieces_of(translator, source, target)
    before = [*translator.target_tokenizer.pieces([BOS_ID]), *of_target[:-1]]
    views = {
        "encoder": View("Encoder self-attention", "from each source piece (row) to all (columns)",
                        maps.encoder, of_source, of_source),
        "decoder": View("Decoder self-attention", "from each output piece being chosen (row) to those before it (columns)",
                        maps.decoder, of_target, before),
        "cross": View("Cross-attention", "from each output piece being chosen (row) to the source (columns)",
                      maps.cross, of_target, of_source)}
    return {name: view for name, view in views.items() if view.weights}


def pieces_of(translator: Translator, source: list[int], target: list[int]) -> tuple[list[str], list[str]]:
    """Return the pieces of the target, then of the source: rows and columns of cross-attention."""
    return translator.target_tokenizer.pieces(target), translator.source_tokenizer.pieces(source)
