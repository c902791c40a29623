"""Pack unfinished hypotheses into a dense (N, D) matrix."""

from __future__ import annotations

import torch
from torch import Tensor


class ActiveHypotheses:
    """N of the K hypotheses that each of B sentences has. Finished ones need no work.

    Maps that treat every hypothesis alone take the N rows. Attention takes all, a sentence's hypotheses side by side.
    """

    def __init__(self, sentences: int, hypotheses: int, chosen: Tensor | None = None) -> None:
        """chosen (N,): rising numbers of 0 to B x K - 1, at least one; None: all."""
        self.shape = (sentences, hypotheses)
        self.chosen = chosen
        if chosen is not None:  # the row of each of the B x K, the first where it has none
            self._row = torch.zeros(sentences * hypotheses, dtype=torch.long, device=chosen.device)
            self._row[chosen] = torch.arange(len(chosen), device=chosen.device)

    def __len__(self) -> int:
        return self.shape[0] * self.shape[1] if self.chosen is None else len(self.chosen)

    def sentences(self, device: torch.device) -> Tensor:
        """Return the sentence of each row: (N,)."""
        return self._numbers(device) // self.shape[1]

    def places(self, device: torch.device) -> Tensor:
        """Return each row's number among its sentence's hypotheses: (N,)."""
        return self._numbers(device) % self.shape[1]

    def _numbers(self, device: torch.device) -> Tensor:
        return torch.arange(len(self), device=device) if self.chosen is None else self.chosen

    def pack(self, x: Tensor) -> Tensor:
        """(B, K, ...) -> (N, ...)."""
        x = x.flatten(0, 1)
        return x if self.chosen is None else x.index_select(0, self.chosen)

    def unpack(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, K, ...), with a copy of the first row in place of the others."""
        x = x if self.chosen is None else x.index_select(0, self._row)
        return x.view(*self.shape, *x.shape[1:])
