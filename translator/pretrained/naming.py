"""Names of weights, and the order of their channels, in `transformers` and in this project."""

from __future__ import annotations

import re

from torch import Tensor

from translator.runtime.atomic_files import Weights

# A layer's modules: their name in `transformers`, and here.
PARTS = {
    "self_attn.q_proj": "self_attention.W_q", "self_attn.k_proj": "self_attention.W_k",
    "self_attn.v_proj": "self_attention.W_v", "self_attn.out_proj": "self_attention.W_o",
    "encoder_attn.q_proj": "cross_attention.W_q", "encoder_attn.k_proj": "cross_attention.W_k",
    "encoder_attn.v_proj": "cross_attention.W_v", "encoder_attn.out_proj": "cross_attention.W_o",
    "encoder_attn_layer_norm": "around_cross.norm", "fc1": "feed_forward.inner", "fc2": "feed_forward.outer",
    "final_layer_norm": "around_feed_forward.norm"}
SELF_NORM = {"encoder": "around_attention.norm", "decoder": "around_self.norm"}


def weight_names(encoder_layers: int, decoder_layers: int) -> dict[str, str]:
    """Return the name here of each weight and bias, by its name in `transformers`; without embeddings and output."""
    names = {}
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        names[f"model.{side}.layer_norm"] = f"{side}_norm"
        for layer in range(layers):
            for theirs, ours in (PARTS | {"self_attn_layer_norm": SELF_NORM[side]}).items():
                names[f"model.{side}.layers.{layer}.{theirs}"] = f"{side}.{layer}.{ours}"
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in names.items() for kind in ("weight", "bias")}


def with_channels_in_order(weights: Weights, order: Tensor) -> Weights:
    """Return the same model with the channels of its hidden states, (D,), in another order; by this project's names."""
    ordered = {}
    for name, tensor in weights.items():
        if re.search(r"(W_o|outer|norm)\.(weight|bias)$", name):  # writes channels
            ordered[name] = tensor[order]
        else:  # reads channels, and has one bias for each of its own outputs
            ordered[name] = tensor[:, order] if tensor.dim() == 2 else tensor
    return ordered
