"""The cross-attention of a model that aligns target pieces with source pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AlignmentHeads:
    """Heads of decoder layers, numbered from 0, whose mean attention aligns pieces."""

    layers: tuple[int, ...]
    head: int | None = None  # of each layer; None: all heads
    next_row: bool = False  # read where the target piece is the decoder's input, a row after the one that predicts it

    @classmethod
    def usual(cls, layers: int) -> AlignmentHeads:
        """Return all heads of all layers but the first.

        The first layer has not read the source yet when it chooses where to look. A single layer aligns on its own.
        Averaged over heads, attention aligns words well (Garg et al. 2019, https://arxiv.org/abs/1909.02074, section 3).
        """
        return cls(tuple(range(min(1, layers - 1), layers)))

    def fits(self, heads: Sequence[int]) -> bool:
        """Return whether a model has them; heads: of the cross-attention of each decoder layer."""
        numbers = (*self.layers, 0 if self.head is None else self.head)
        return bool(self.layers) and all(isinstance(number, int) and number >= 0 for number in numbers) and (
            max(self.layers) < len(heads) and all(numbers[-1] < heads[layer] for layer in self.layers))

    def of(self, weights: Tensor) -> Tensor:
        """Return the mean over the heads of one layer: (B, H, T, S) -> (B, T, S)."""
        return weights.mean(dim=1) if self.head is None else weights[:, self.head]

    def mean(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the mean over layers and heads in float32: (B, H, T, S) of each layer -> (B, T, S)."""
        if self.head is None and len({len(of_layer[0]) for of_layer in weights}) > 1:  # layers count alike in any case
            weights = [of_layer.float().mean(dim=1, keepdim=True) for of_layer in weights]
        of_layers = torch.stack(list(weights)).float()
        return of_layers.mean(dim=(0, 2)) if self.head is None else of_layers[:, :, self.head].mean(dim=0)

    def aligned(self, attention: Tensor) -> Tensor:
        """Move the rows of attention (B, T, S) to the target pieces that they align; the last row has no next one."""
        return torch.cat([attention[:, 1:], attention[:, -1:]], dim=1) if self.next_row else attention
