"""Multi-head attention as in section 3.2 of the paper: masks, the formula, and the module built on it.

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762. Faster ways to compute the same are in
`attention_paths`, decoding step by step is in `incremental`.

Shapes: B batch, H heads, T query length, S key length, D model width, K head width, by default D / H. Masks are
boolean, True where a query may attend to a key, broadcastable to the weights (B, H, T, S). A query that may attend to nothing
gets zeros, forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from translator.model.attention_paths import blocks_pay, fused_attention, fused_pays, windowed_attention
from translator.model.cpu_operations import all_true, dropout, matmul, softmax
from translator.model.positions import AdaptiveSpan, AlibiBias, PositionBias, RelativeBias, RotaryPositions, sum_biases
from translator.runtime.device import to_matmul_dtype

# The lowest number: a score plus this is this. Minus infinity would make NaN of a row without keys.
FORBIDDEN = torch.finfo(torch.float32).min

# Compares queries (B, H, T, K) with keys (B, H, S, K): a new tensor (B, H, T, S), which is changed after that.
Score = Callable[[Tensor, Tensor], Tensor]


def padding_mask(ids: Tensor, pad_id: int) -> Tensor | None:
    """Allow keys that are not padding: ids (B, S) -> (B, 1, 1, S), or None if a CPU finds no padding."""
    return keys_mask(ids != pad_id)


def keys_mask(allowed: Tensor) -> Tensor | None:
    """Allow the same keys to every query: (B, S) -> (B, 1, 1, S), or None if a CPU finds that all are allowed."""
    return None if all_true(allowed) else allowed[:, None, None, :]


def window_mask(
    query_length: int, key_length: int, *, window: int, causal: bool, device: torch.device | None = None
) -> Tensor:
    """Allow keys at most `window` positions away, and no later ones if `causal`: (T, S).

    The queries are the last T of the S positions. Local attention: Beltagy et al. 2020, https://arxiv.org/abs/2004.05150.
    """
    keys = torch.arange(key_length, device=device)
    queries = torch.arange(key_length - query_length, key_length, device=device)
    distance = queries[:, None] - keys[None, :]  # (T, S), positive where the key came earlier
    return (distance <= window) & (distance >= (0 if causal else -window))


def additive_mask(mask: Tensor) -> Tensor:
    """Turn a boolean mask into numbers to add to scores: 0 where allowed, else FORBIDDEN."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, FORBIDDEN)


def scaled_dot_product(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the scores Q K^T / sqrt(K): queries (B, H, T, K), keys (B, H, S, K) -> (B, H, T, S), in float32."""
    return matmul(queries, keys.transpose(-2, -1)).float().div_(math.sqrt(queries.size(-1)))


def scaled_dot_product_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None,
    dropout_p: float = 0.0, score: Score = scaled_dot_product,
) -> tuple[Tensor, Tensor]:
    """Return softmax(Q K^T / sqrt(K) + bias) V, the formula of section 3.2.1, and its weights.

    queries (B, H, T, K), keys and values (B, H, S, K); mask and bias broadcastable to (B, H, T, S).
    score: replaces Q K^T / sqrt(K).
    Returns the output (B, H, T, K) and the weights before dropout (B, H, T, S).
    """
    scores = score(queries, keys)  # (B, H, T, S)
    # Other scores, such as one that ends in tanh, may need what they returned for their gradient.
    in_place = not torch.is_grad_enabled() or (score is scaled_dot_product and FORMULA_AS_PUBLISHED)
    if bias is not None:
        scores = scores.add_(bias) if in_place else scores + bias
    if mask is not None:
        scores = scores.add_(additive_mask(mask)) if in_place else scores + additive_mask(mask)
    weights = softmax(scores)  # in float32: half-precision sums lose long rows
    if mask is not None:
        has_keys = mask.any(dim=-1, keepdim=True)  # (B, H, T, 1)
        if not all_true(has_keys):
            weights = weights.masked_fill(~has_keys, 0.0)  # without keys the softmax came out uniform
    return matmul(dropout(weights, dropout_p).to(values.dtype), values), weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2): Concat(head_1, ..., head_H) W_o, head_i = Attention(Q W_q, K W_k, V W_v).

    One module serves as self-attention (without `memory`), cross-attention (with `memory`), causal and windowed attention.
    """

    def __init__(
        self, d_model: int, num_heads: int, *, head_width: int | None = None, dropout: float = 0.0, causal: bool = False,
        window: int | None = None, rotary: RotaryPositions | None = None, relative: RelativeBias | AlibiBias | None = None,
        span: AdaptiveSpan | None = None, score: Score = scaled_dot_product, gate: bool = False,
    ) -> None:
        """window: tokens each side that a token may attend to, all if None. rotary, relative, span: for self-attention.

        gate: multiply the heads by sigmoid(x W_g) before W_o (Qiu et al. 2025, https://arxiv.org/abs/2505.06708, section 2.2).
        """
        super().__init__()
        self.num_heads = num_heads
        self.head_width = d_model // num_heads if head_width is None else head_width
        self.dropout = dropout
        self.causal = causal
        self.window = window
        self.rotary = rotary
        self.relative = relative
        self.span = span
        self.biases: list[PositionBias] = [part for part in (relative, span) if part is not None]
        self.score = score
        width = num_heads * self.head_width  # of all heads
        self.W_q = nn.Linear(d_model, width)
        self.W_k = nn.Linear(d_model, width)
        self.W_v = nn.Linear(d_model, width)
        self.W_o = nn.Linear(width, d_model)
        self.W_g = nn.Linear(d_model, width) if gate else None

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (B, T, D) to memory (B, S, D), or to x.

        mask: keys allowed besides what causality and window allow, broadcastable to (B, H, T, S).
        Returns the output (B, T, D), and the weights (B, H, T, S) if `need_weights`.
        """
        x = to_matmul_dtype(x)  # (B, T, D)
        queries, keys, values = self.project(x, x if memory is None else memory)  # (B, H, T, K), twice (B, H, S, K)
        if self.rotary is not None:
            queries, keys = self.rotary(queries, _positions(queries)), self.rotary(keys, _positions(keys))
        heads, weights = compute_attention(  # (B, H, T, K), (B, H, T, S)
            queries, keys, values, score=self.score, mask=mask, biases=self.biases, causal=self.causal,
            window=self.window, dropout_p=self.dropout if self.training else 0.0, need_weights=need_weights)
        return self.output(concatenate_heads(heads), x), weights  # (B, T, D), (B, H, T, S)

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of x (B, T, D) and the keys and values of memory (B, S, D), by heads."""
        return self.split_heads(self.W_q(x)), *self.keys_values(memory)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, H, S, K) of memory (B, S, D)."""
        memory = to_matmul_dtype(memory)
        return self.split_heads(self.W_k(memory)), self.split_heads(self.W_v(memory))

    def output(self, heads: Tensor, x: Tensor) -> Tensor:
        """Return the output (..., D) for the concatenated heads (..., H x K) of x (..., D)."""
        return self.W_o(heads if self.W_g is None else heads * self.W_g(x).sigmoid())

    def reach(self) -> int | None:
        """Return the largest distance to a key that a query attends to; None: any."""
        limits = [self.window, None if self.span is None else self.span.reach()]
        return min((limit for limit in limits if limit is not None), default=None)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, H x K) -> (B, H, T, K)."""
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)

    def maps(self) -> list[nn.Linear]:
        """Return the maps to queries, keys and values."""
        return [self.W_q, self.W_k, self.W_v]


def _positions(heads: Tensor) -> Tensor:
    """Return the positions 0 to T - 1 of (B, H, T, K): (T,)."""
    return torch.arange(heads.size(2), device=heads.device)


def concatenate_heads(heads: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, H x K)."""
    return heads.transpose(1, 2).flatten(2)


def compute_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, score: Score, mask: Tensor | None = None, bias: Tensor | None = None,
    biases: Sequence[PositionBias] = (), causal: bool = False, window: int | None = None, dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by the fastest path that gives what the formula gives. This is the only place that chooses.

    Every path other than the formula is for `scaled_dot_product`, and returns no weights. Editing the formula turns them off.
    Queries of n x B sentences share the keys and values of B, n times over.
    """
    fast = score is scaled_dot_product and FORMULA_AS_PUBLISHED and not need_weights
    if len(queries) > len(keys):
        times = len(queries) // len(keys)
        keys, values = keys.repeat(times, 1, 1, 1), values.repeat(times, 1, 1, 1)
        mask = None if mask is None else mask.repeat(times, 1, 1, 1)
    length, key_length = queries.size(2), keys.size(2)
    if fast and window is not None and blocks_pay(window, length, key_length, mask):
        return windowed_attention(
            queries, keys, values, window=window, causal=causal, mask=mask, biases=biases, dropout_p=dropout_p), None
    if biases:
        bias = sum_biases(biases, _positions(queries), _positions(keys))
    triangle = causal and window is None and mask is None and bias is None and length == key_length
    if fast and triangle and fused_pays(queries, keys, masked=False):
        return fused_attention(queries, keys, values, causal=True, dropout_p=dropout_p), None
    if causal or (window is not None and window < key_length - 1):
        width = key_length if window is None else window
        local = window_mask(length, key_length, window=width, causal=causal, device=queries.device)
        mask = local if mask is None else mask & local
    if fast and fused_pays(queries, keys, masked=mask is not None):
        return fused_attention(queries, keys, values, mask=mask, bias=bias, dropout_p=dropout_p), None
    heads, weights = scaled_dot_product_attention(
        queries, keys, values, mask=mask, bias=bias, dropout_p=dropout_p, score=score)
    return heads, weights if need_weights else None


@torch.no_grad()
def _formula_agrees_with_kernel() -> bool:
    """Return whether the formula above computes what PyTorch's kernel does, which an edit of it need not."""
    inputs = torch.linspace(-2, 3, 3 * 2 * 3 * 4, device="cpu", dtype=torch.float32).sin().view(3, 1, 2, 3, 4).unbind()
    options: list[dict[str, Any]] = [
        {"mask": mask, "bias": bias} for mask in (None, window_mask(3, 3, window=1, causal=False, device=inputs[0].device))
        for bias in (None, inputs[0] @ inputs[2].mT)]
    return all(
        torch.allclose(scaled_dot_product_attention(*inputs, **given)[0], fused_attention(*inputs, **given), atol=1e-5)
        for given in options)


# Found out once: an edit of the formula must not train one model and decode another.
FORMULA_AS_PUBLISHED = _formula_agrees_with_kernel()
