"""Faster ways to compute scaled dot-product attention: PyTorch's fused kernel, and blocks for windows.

Shapes as in `attention`, whose `compute_attention` chooses among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from translator.model.cpu_operations import onednn_is_slow
from translator.model.positions import PositionBias, sum_biases
from translator.runtime.device import onednn

# Keys from which on the fused kernel is faster than the formula on a CPU...
CPU_FUSED_FROM = 512
# ... or up to this many sentences and scores, if nothing is masked or trained: there calls cost more than arithmetic.
CPU_FUSED_UP_TO = 8
CPU_FUSED_SCORES = 2**13
# Fewest queries in a block of windowed attention: smaller products do not keep a processor busy.
WINDOW_BLOCK = 64


def fused_pays(queries: Tensor, keys: Tensor, *, masked: bool) -> bool:
    """Return whether PyTorch's kernel is faster than the formula."""
    if queries.device.type != "cpu" or keys.size(2) >= CPU_FUSED_FROM:
        return True
    if masked or torch.is_grad_enabled():
        return False
    batch, heads, length, _ = queries.shape
    return batch <= CPU_FUSED_UP_TO and batch * heads * length * keys.size(2) <= CPU_FUSED_SCORES


def fused_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: bool = False, dropout_p: float = 0.0,
) -> Tensor:
    """Return the output of scaled dot-product attention by PyTorch's kernel, which never stores the weights.

    causal: apply the triangular mask (T = S) without building it. Not together with mask or bias.
    """
    if mask is None:
        if bias is not None:
            # A GPU's kernel reads the bias in units of 16 bytes. A slice may start between two of them.
            askew = bias.device.type == "cuda" and not torch.compiler.is_compiling() and bias.storage_offset() % 16 > 0
            bias = bias.to(queries.dtype, copy=askew)
        with onednn(keys.size(2) >= CPU_FUSED_FROM or not onednn_is_slow(queries)):
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=bias, dropout_p=dropout_p, is_causal=causal)
    # Kernels differ, some give NaN, for a row without keys. Let such a row attend to all keys, then set it to zero.
    has_keys = mask.any(dim=-1, keepdim=True)
    allowed = mask | ~has_keys
    if bias is not None:
        if queries.dtype == torch.float16:  # where keys beyond a span would be forbidden, and a row of only such keys NaN
            bias = bias.clamp(min=torch.finfo(torch.float16).min)
        allowed = bias.masked_fill(~allowed, -torch.inf).to(queries.dtype)
    output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed, dropout_p=dropout_p)
    return output.masked_fill(~has_keys, 0.0)


def blocks_pay(window: int, length: int, key_length: int, mask: Tensor | None) -> bool:
    """Return whether `windowed_attention` applies and pays: long self-attention under a mask of keys only."""
    masks_keys = mask is None or mask.size(-2) == 1
    return masks_keys and length == key_length >= 4 * max(window, WINDOW_BLOCK)


def windowed_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, window: int, causal: bool, mask: Tensor | None = None,
    biases: Sequence[PositionBias] = (), dropout_p: float = 0.0,
) -> Tensor:
    """Return `fused_attention` under `window_mask`, in time and memory linear in the length.

    queries, keys, values (B, H, T, K), mask of keys (B, 1, 1, T) -> (B, H, T, K). Each block of queries attends to the keys
    in reach of its windows (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 3.1 and appendix A).
    """
    batch, _, length, _ = queries.shape
    block, ahead = max(window, WINDOW_BLOCK), 0 if causal else window
    span = window + block + ahead  # keys in reach of a block
    blocks = -(-length // block)
    missing = blocks * block - length

    def reached(x: Tensor) -> Tensor:
        """Return what each block reaches of x (B, H, T, K): (B x blocks, H, span, K)."""
        padded = F.pad(x, (0, 0, window, missing + ahead))
        return padded.unfold(2, span, block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    real = torch.ones(1, 1, 1, length, dtype=torch.bool, device=queries.device) if mask is None else mask
    real = reached(real.transpose(2, 3).expand(batch, -1, -1, -1)).transpose(2, 3)  # (B x blocks, 1, 1, span)
    key_at = torch.arange(span, device=queries.device)
    query_at = key_at[window : window + block]
    distance = query_at[:, None] - key_at  # (block, span)
    near = (distance <= window) & (distance >= (0 if causal else -window))
    bias = sum_biases(biases, query_at, key_at) if biases else None
    grouped = F.pad(queries, (0, 0, 0, missing)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
    heads = fused_attention(grouped, reached(keys), reached(values), mask=near & real, bias=bias, dropout_p=dropout_p)
    return heads.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]
