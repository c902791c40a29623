"""Score functions of attention: how a query is compared with a key.

To add one, write a class with a `forward` as below, and name it in `SCORES` and in `ModelConfig.attention`. It returns
a new tensor, which may be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from translator.config.options import ModelConfig
from translator.model.attention import Score, scaled_dot_product


class AdditiveScore(nn.Module):
    """v^T tanh(q + k), with a vector v for each head: Bahdanau et al. 2015, appendix A.1.2.

    https://arxiv.org/abs/1409.0473. Its W and U are the maps to queries and keys. Needs memory for (B, H, T, S, K) numbers.
    """

    def __init__(self, num_heads: int, head_width: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(num_heads, head_width))
        nn.init.normal_(self.v, std=head_width**-0.5)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the scores of queries (B, H, T, K) and keys (B, H, S, K): (B, H, T, S), in float32."""
        compared = torch.tanh(queries[:, :, :, None] + keys[:, :, None])  # (B, H, T, S, K)
        return (compared @ self.v[:, None, :, None].to(compared.dtype)).squeeze(-1).float()


# By `model.attention`.
SCORES: dict[str, Callable[[ModelConfig], Score]] = {
    "dot": lambda config: scaled_dot_product,
    "additive": lambda config: AdditiveScore(config.num_heads, config.d_k)}


def build_score(config: ModelConfig) -> Score:
    """Build the score of one attention of a model."""
    return SCORES[config.attention](config)
