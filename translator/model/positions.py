"""Position schemes: how a model that sees a set learns its order.

To add one, write a class that acts at one of three places, and name it in `SCHEMES` and in `ModelConfig.positions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from translator.config.options import ModelConfig
from translator.runtime.errors import UserError

# Relative positions, as in T5: biases of a head, and the distance from which on all share the last one.
NUM_BUCKETS, MAX_DISTANCE = 32, 128
# Tokens over which the weights at the end of an adaptive span fall to zero.
RAMP = 8
# What an adaptive span adds to the scores of keys beyond it. More would overflow together with a mask.
NO_WEIGHT = -1e30


class SinusoidalPositions(nn.Module):
    """sin and cos of position / 10000^(2i / D): Vaswani et al. 2017, section 3.5. Added to embeddings (B, T, D)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.table: Tensor
        self.register_buffer("table", torch.empty(0, d_model), persistent=False)

    def forward(self, x: Tensor, *, start: int = 0) -> Tensor:
        """Add the encodings of positions `start` and on to x (B, T, D)."""
        end = start + x.size(1)
        if end > self.table.size(0):
            with torch.inference_mode(False):  # compiled training cannot use a table that search has made
                self.table = self._encode(max(512, 2 * end), x.device)
        return x + self.table[start:end].to(x)

    def _encode(self, length: int, device: torch.device) -> Tensor:
        position = torch.arange(length, device=device, dtype=torch.float32)[:, None]
        even = torch.arange(0, self.d_model, 2, device=device, dtype=torch.float32)
        angle = position * torch.exp(even * (-math.log(10_000.0) / self.d_model))  # (length, D / 2)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class LearnedPositions(nn.Module):
    """A trained vector for each of `max_positions` positions, added to embeddings (B, T, D); UserError past the last."""

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_positions, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)  # the scale of the token embeddings

    def forward(self, x: Tensor, *, start: int = 0) -> Tensor:
        end = start + x.size(1)
        if end > self.table.num_embeddings:
            raise UserError(
                f"model.max_positions: a sentence of {end} tokens is longer than the {self.table.num_embeddings} learned "
                "positions. Raise it, or train with model.positions=sinusoidal.")
        return x + self.table.weight[start:end].to(x)


class RotaryPositions(nn.Module):
    """Rotate each pair of a head's channels by an angle that grows with the position: Su et al. 2021, RoFormer.

    https://arxiv.org/abs/2104.09864, section 3.2. Scores of rotated queries and keys depend only on distances.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x (B, H, T, K) by `positions` (T,), or all of it by one (1,)."""
        even = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=torch.float32)
        frequency = 10_000.0 ** (-even / self.head_dim)  # not a buffer: bf16 is too coarse
        angle = positions[:, None].float() * frequency  # (T, K / 2)
        sin, cos = angle.sin(), angle.cos()
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class RelativeBias(nn.Module):
    """A learned bias for each head and distance, added to attention scores: Raffel et al. 2020 (T5), section 2.1.

    https://arxiv.org/abs/1910.10683. Near distances have a bias each. Far ones share buckets that widen as a logarithm up to
    MAX_DISTANCE, beyond which all share the last one: hence any length.
    """

    def __init__(self, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.bias = nn.Embedding(NUM_BUCKETS, num_heads)
        nn.init.zeros_(self.bias.weight)  # starts as attention without positions

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias (1, H, T, S) between queries at positions (T,) and keys at positions (S,)."""
        return self.bias(self._bucket(queries[:, None] - keys)).permute(2, 0, 1)[None]

    def _bucket(self, distance: Tensor) -> Tensor:
        buckets = NUM_BUCKETS
        offset = torch.zeros_like(distance)
        if self.causal:
            distance = distance.clamp(min=0)  # later keys are masked
        else:
            buckets //= 2  # one half for earlier keys, one for later ones
            offset = (distance < 0) * buckets
            distance = distance.abs()
        exact = buckets // 2
        ratio = (distance.clamp(min=1).float() / exact).log() / math.log(MAX_DISTANCE / exact)
        far = (exact + ratio * (buckets - exact)).long().clamp(max=buckets - 1)
        return offset + torch.where(distance < exact, distance, far)


class AlibiBias(nn.Module):
    """A penalty for each head that grows linearly with the distance, without weights: Press et al. 2022, ALiBi, section 3.

    https://arxiv.org/abs/2108.12409. The slopes of H heads are 2^(-8/H), 2^(-16/H), ..., 2^-8. The encoder counts the distance
    to later keys like that to earlier ones.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias (1, H, T, S) between queries at positions (T,) and keys at positions (S,)."""
        heads = torch.arange(1, self.num_heads + 1, device=queries.device)
        slopes = torch.exp2(-8.0 * heads / self.num_heads)  # not a buffer: bf16 is too coarse
        return -(queries[:, None] - keys).abs() * slopes[:, None, None][None]


class AdaptiveSpan(nn.Module):
    """A learned span of attention for each head: Sukhbaatar et al. 2019, section 2.2, https://arxiv.org/abs/1905.07799.

    A key at a distance of x tokens has its weight multiplied by m(x) = clamp((RAMP + z - x) / RAMP, 0, 1), which is the same as
    log m(x) added to its score. z, from 0 to `longest`, is learned: longest x sigmoid(s), where the paper clamps.
    """

    def __init__(self, num_heads: int, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.s = nn.Parameter(torch.full((num_heads,), -2.0))  # begins with an eighth of the longest

    def spans(self) -> Tensor:
        """Return z of each head, in tokens: (H,)."""
        return self.longest * self.s.float().sigmoid()

    def reach(self) -> int:
        """Return the largest distance at which a key has any weight."""
        return math.ceil(float(self.spans().detach().max()) + RAMP) - 1

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias (1, H, T, S) between queries at positions (T,) and keys at positions (S,)."""
        distance = (queries[:, None] - keys).abs()
        inside = (RAMP + self.spans()[:, None, None] - distance) / RAMP  # (H, T, S)
        return torch.where(inside > 0, inside.clamp(torch.finfo(torch.float32).tiny, 1).log(), NO_WEIGHT)[None]


# Adds to scores: positions of queries (T,) and of keys (S,) -> (1, H, T, S).
PositionBias = Callable[[Tensor, Tensor], Tensor]


def sum_biases(biases: Sequence[PositionBias], queries: Tensor, keys: Tensor) -> Tensor:
    """Return the sum of biases between queries at positions (T,) and keys at positions (S,): (1, H, T, S)."""
    first, *others = (bias(queries, keys) for bias in biases)
    return sum(others, first)


# What a scheme changes, and what its `forward` takes and returns:
# "embeddings": x (B, T, D), start -> (B, T, D);
# "queries and keys": x (B, H, T, K), positions (T,) -> (B, H, T, K);
# "scores": positions of queries (T,) and of keys (S,) -> a bias (1, H, T, S).
Place = Literal["embeddings", "queries and keys", "scores"]


class Scheme(NamedTuple):
    """A position scheme: where it acts, and how to build it for a model's attention, causal or not."""

    place: Place
    build: Callable[[ModelConfig, bool], nn.Module]


# By `model.positions`.
SCHEMES = {
    "sinusoidal": Scheme("embeddings", lambda config, causal: SinusoidalPositions(config.d_model)),
    "learned": Scheme("embeddings", lambda config, causal: LearnedPositions(config.d_model, config.max_positions)),
    "rotary": Scheme("queries and keys", lambda config, causal: RotaryPositions(config.d_k)),
    "relative": Scheme("scores", lambda config, causal: RelativeBias(config.num_heads, causal=causal)),
    "alibi": Scheme("scores", lambda config, causal: AlibiBias(config.num_heads))}


def build_positions(config: ModelConfig, place: Place, *, causal: bool = False) -> Any:
    """Build the model's position scheme if it acts at this place, else return None."""
    scheme = SCHEMES[config.positions]
    return scheme.build(config, causal) if scheme.place == place else None
