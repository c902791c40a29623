"""Layers with fewer heads than others, for programs in which all have the same number."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from translator.config.options import ModelConfig
from translator.model.attention import MultiHeadAttention
from translator.model.inference_layers import linear_of
from translator.runtime.errors import UserError


def full_maps(attention: MultiHeadAttention, num_heads: int) -> list[nn.Linear]:
    """Return W_q, W_k, W_v and W_o with heads of zeros up to `num_heads`. They compute the same, in the time of all heads."""
    missing = (num_heads - attention.num_heads) * attention.head_width
    inputs = [linear_of(F.pad(W.weight, (0, 0, 0, missing)), F.pad(W.bias, (0, missing))) for W in attention.maps()]
    return [*inputs, linear_of(F.pad(attention.W_o.weight, (0, missing)), attention.W_o.bias)]


def require_no_more_heads(config: ModelConfig, program: str) -> None:
    """Raise UserError for a layer with more than model.num_heads heads, which zeros cannot express."""
    for kind in ("encoder", "decoder", "cross"):
        if max(heads := config.heads(kind)) > config.num_heads:
            raise UserError(f"model.{kind}_heads={list(heads)}: more than model.num_heads={config.num_heads} in a layer. "
                            f"{program} cannot run such a model.")
