"""The hypotheses of a step that are worked on, as rows of a matrix (floor 1)."""

from __future__ import annotations

import torch
from torch import Tensor


class OpenRows:
    """N of the hypotheses that B sentences have, K each: those that have finished need no work.

    Maps that treat every hypothesis by itself take the rows; attention, in which a sentence's hypotheses stand side by side,
    takes all.
    """

    def __init__(self, sentences: int, hypotheses: int, chosen: Tensor | None = None) -> None:
        """chosen (N,): numbers in 0 .. B x K - 1, rising; None: all."""
        self.shape = (sentences, hypotheses)
        self.chosen = chosen

    def __len__(self) -> int:
        return self.shape[0] * self.shape[1] if self.chosen is None else len(self.chosen)

    def sentences(self, device: torch.device) -> Tensor:
        """The sentence of each: (N,)."""
        return self._numbers(device) // self.shape[1]

    def places(self, device: torch.device) -> Tensor:
        """Which of its sentence's hypotheses each is: (N,)."""
        return self._numbers(device) % self.shape[1]

    def _numbers(self, device: torch.device) -> Tensor:
        return torch.arange(len(self), device=device) if self.chosen is None else self.chosen

    def pack(self, x: Tensor) -> Tensor:
        """(B, K, ...) -> (N, ...)."""
        x = x.flatten(0, 1)
        return x if self.chosen is None else x[self.chosen]

    def unpack(self, x: Tensor, *, fill: float = 0) -> Tensor:
        """(N, ...) -> (B, K, ...), `fill` in place of the others."""
        if self.chosen is not None:
            x = x.new_full((self.shape[0] * self.shape[1], *x.shape[1:]), fill).index_copy_(0, self.chosen, x)
        return x.view(*self.shape, *x.shape[1:])
