"""The Transformer's layers: residual sublayers around attention and feed-forward.

Vaswani et al. 2017, sections 3.1 and 3.3. Shapes: B batch, S source length, T target length, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translator.config.options import ModelConfig
from translator.model.attention import MultiHeadAttention
from translator.model.cpu_operations import dropout
from translator.model.positions import AdaptiveSpan, build_positions
from translator.model.scores import build_score
from translator.model.ssru import SSRU
from translator.runtime.device import to_matmul_dtype


class FeedForward(nn.Module):
    """Two linear maps around a non-linearity (section 3.3), for each position: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # In place, ReLU spares a copy of the layer's widest tensor. Its gradient needs only the output.
        functions: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "gelu": F.gelu, "silu": F.silu}
        self.activation = functions[config.activation]
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = config.activation_dropout

    def forward(self, x: Tensor) -> Tensor:
        # As rows: with three dimensions the inner output is a view, and autograd copies what changes a view in place.
        rows = self.activation(self.inner(x.flatten(0, -2)))  # (B x T, d_ff)
        return self.outer(dropout(rows, self.dropout, self.training)).view(x.shape)


class GatedFeedForward(nn.Module):
    """SwiGLU: the inner layer is gated by the swish of a second linear map (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_ff)
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = config.activation_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = to_matmul_dtype(x)
        return self.outer(dropout(F.silu(self.gate(x)) * self.inner(x), self.dropout, self.training))


class PreNorm(nn.Module):
    """x + dropout(f(norm(x))): Xiong et al. 2020, https://arxiv.org/abs/2002.04745.

    Called in two parts, leave(x, f(enter(x))): some sublayers f take more than x, or return more than their output.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = config.dropout

    def enter(self, x: Tensor) -> Tensor:
        """Return the sublayer's input."""
        return self.norm(x)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sublayer's output y to x."""
        return x + dropout(y, self.dropout, self.training)


class PostNorm(PreNorm):
    """norm(x + dropout(f(x))): Vaswani et al. 2017, section 3.1."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(super().leave(x, y))


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.self_attention = _self_attention(config, causal=False, window=window)
        self.feed_forward = _feed_forward(config)
        self.around_attention = _residual(config)
        self.around_feed_forward = _residual(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, S, D), mask (B, 1, 1, S) of real tokens -> (B, S, D)."""
        y, _ = self.self_attention(self.around_attention.enter(x), mask=mask)
        x = self.around_attention.leave(x, y)
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y)


class DecoderLayer(nn.Module):
    """Causal self-attention (or an SSRU) over the target, cross-attention to the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig, window: int | None, cross_heads: int | None = None) -> None:
        """cross_heads: heads of the cross-attention; None: the same number as in self-attention."""
        super().__init__()
        cross = config if cross_heads is None else config.with_heads(cross_heads)
        self.self_attention: Any = (  # MultiHeadAttention or SSRU
            SSRU(config.d_model) if config.decoder == "ssru" else _self_attention(config, causal=True, window=window))
        self.cross_attention = MultiHeadAttention(
            cross.d_model, cross.num_heads, head_width=cross.d_k, dropout=cross.attention_dropout, score=build_score(cross),
            gate=cross.attention_gate)
        self.feed_forward = _feed_forward(config)
        self.around_self = _residual(config)
        self.around_cross = _residual(config)
        self.around_feed_forward = _residual(config)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), memory (B, S, D), mask (B, 1, 1, S) of the memory's real tokens -> (B, T, D).

        Also the cross-attention's weights (B, H, T, S) if `need_weights`. Target padding needs no mask: it comes last, where
        causality hides it from every real token.
        """
        y, _ = self.self_attention(self.around_self.enter(x))
        x = self.around_self.leave(x, y)
        y, weights = self.cross_attention(self.around_cross.enter(x), memory, mask=mask, need_weights=need_weights)
        x = self.around_cross.leave(x, y)
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y), weights


def _self_attention(config: ModelConfig, *, causal: bool, window: int | None) -> MultiHeadAttention:
    span = None if config.adaptive_span is None else AdaptiveSpan(config.num_heads, config.adaptive_span)
    return MultiHeadAttention(
        config.d_model, config.num_heads, head_width=config.d_k, dropout=config.attention_dropout, causal=causal,
        window=window, rotary=build_positions(config, "queries and keys"),
        relative=build_positions(config, "scores", causal=causal), span=span, score=build_score(config),
        gate=config.attention_gate)


def _feed_forward(config: ModelConfig) -> FeedForward | GatedFeedForward:
    return GatedFeedForward(config) if config.activation == "swiglu" else FeedForward(config)


def _residual(config: ModelConfig) -> PreNorm:
    placement: dict[Literal["pre", "post"], type[PreNorm]] = {"pre": PreNorm, "post": PostNorm}
    return placement[config.norm](config)
