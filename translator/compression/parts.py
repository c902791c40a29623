"""Parts of a trained model: some of its heads, layers and pieces, as a smaller model's options and weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from translator.config.heads import Attention
from translator.config.options import ModelConfig
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, load_into
from translator.runtime.atomic_files import Weights
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer

# Where each kind of attention is in a decoder or encoder layer.
ATTENTIONS: dict[Attention, tuple[Literal["encoder", "decoder"], str]] = {
    "encoder": ("encoder", "self_attention"), "decoder": ("decoder", "self_attention"), "cross": ("decoder", "cross_attention")}
# The dimension of each weight of an attention that is divided among its heads. W_o's bias belongs to none.
DIVIDED = {
    **{f"W_{name}.{kind}": 0 for name in "qkvg" for kind in ("weight", "bias")}, "W_o.weight": 1, "score.v": 0, "span.s": 0,
    "relative.bias.weight": 1}
# The heads that stay, by kind of attention and layer.
Heads = Mapping[Attention, Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Parts:
    """The options and weights of a model."""

    config: ModelConfig
    weights: Weights

    def with_layers(self, side: Literal["encoder", "decoder"], layers: Sequence[int]) -> Parts:
        """Return the model with only these layers of one side, in order. UserError for one that it lacks."""
        count = getattr(self.config, f"{side}_layers")
        if max(layers) >= count:
            raise UserError(f"{side}_layers={list(layers)}: the model has no layer {max(layers)}, only 0 to {count - 1}.")
        by_layer = [f"{side}_window", f"{side}_heads", *(["cross_heads"] if side == "decoder" else [])]
        changes: dict[str, Any] = {f"{side}_layers": len(layers)}
        for option in by_layer:
            if isinstance(values := getattr(self.config, option), tuple):
                changes[option] = tuple(values[layer] for layer in layers)
        weights = {}
        for name, weight in self.weights.items():
            found = re.fullmatch(rf"{side}\.(\d+)\.(.+)", name)
            if found is None:
                weights[name] = weight
            elif int(found[1]) in layers:
                weights[f"{side}.{layers.index(int(found[1]))}.{found[2]}"] = weight
        return Parts(dataclasses.replace(self.config, **changes), weights)

    def with_heads(self, heads: Heads) -> Parts:
        """Return the model without the other heads: it computes what this one does if their outputs are zero."""
        if self.config.positions == "alibi":
            raise UserError("heads: model.positions=alibi gives each head a slope by its number. Prune layers or pieces only.")
        weights = dict(self.weights)
        for kind, of_layers in heads.items():
            side, part = ATTENTIONS[kind]
            for layer, (kept, count) in enumerate(zip(of_layers, self.config.heads(kind), strict=True)):
                for name, dimension in DIVIDED.items():
                    name = f"{side}.{layer}.{part}.{name}"
                    if name in weights:
                        by_head = weights[name].unflatten(dimension, (count, -1))
                        weights[name] = by_head.index_select(dimension, torch.tensor(kept)).flatten(dimension, dimension + 1)
        counts: dict[str, Any] = {f"{kind}_heads": tuple(map(len, of_layers)) for kind, of_layers in heads.items()}
        return Parts(dataclasses.replace(self.config, **counts), weights)

    def with_pieces(self, source: Tensor, target: Tensor) -> Parts:
        """Return the model of a vocabulary with these source and target ids, in this order."""
        ids = {"source_embedding.tokens.weight": source, "target_embedding.tokens.weight": target, "output.weight": target,
               "output.bias": target}
        return Parts(self.config, self.weights | {
            name: self.weights[name][pieces] for name, pieces in ids.items() if name in self.weights})

    def model(self, source: Tokenizer, target: Tokenizer) -> Transformer:
        """Return the model of these vocabularies, in eval mode."""
        with SkipInit():
            model = Transformer(self.config, len(source), len(target))
        load_into(model, self.weights, Path("model.safetensors"))
        return model.eval()

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.weights.values())
