"""Encode a large batch of sources in parts that fit a CPU's cache, each padded only to its own longest sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from translator.model.attention import MultiHeadAttention
from translator.text.tokenizer import PAD_ID

# Source tokens in a part. The tokens of 250 sentences of Multi30k left the cache: twice that many took 1.5 s instead of 0.9.
TOKENS_IN_PART = 2**10

Encode = Callable[..., Tensor]


def in_parts(encode: Encode) -> Encode:
    """Let a model's method, source (B, S) -> memory (B, S, D), work part by part, except in training."""
    @wraps(encode)
    def encode_parts(model: Any, source: Tensor) -> Tensor:
        parts = None if model.training else split_source(source != PAD_ID)
        if parts is None:
            return encode(model, source)
        encoded = [encode(model, source[part]) for part in parts]
        return torch.cat([F.pad(x, (0, 0, 0, source.size(1) - x.size(1))) for x in encoded])

    return encode_parts


def split_source(real: Tensor) -> list[tuple[slice, slice]] | None:
    """Split real tokens (B, S) into slices of sentences and of their tokens; None: take all together."""
    if real.device.type != "cpu" or torch.compiler.is_compiling() or real.numel() <= TOKENS_IN_PART:
        return None
    size = max(1, TOKENS_IN_PART // real.size(1))
    parts = (slice(first, first + size) for first in range(0, len(real), size))
    return [(part, slice(int(real[part].any(dim=0).sum()))) for part in parts]


def keys_values_in_parts(
    attention: MultiHeadAttention, memory: Tensor, parts: list[tuple[slice, slice]] | None
) -> tuple[Tensor, Tensor]:
    """Return cross-attention's keys and values of memory (B, S, D), contiguous: (B, H, S, head width). Zero between parts."""
    if parts is None:
        keys, values = attention.keys_values(memory)
        return keys.contiguous(), values.contiguous()
    of_parts = [attention.keys_values(memory[part]) for part in parts]
    shape = len(memory), attention.num_heads, memory.size(1), attention.head_width
    keys, values = (first.new_zeros(shape) for first in of_parts[0])
    for (sentences, tokens), (part_keys, part_values) in zip(parts, of_parts, strict=True):
        keys[sentences, :, tokens], values[sentences, :, tokens] = part_keys, part_values
    return keys, values
