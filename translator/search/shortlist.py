"""Which target pieces may render each source piece.

To search among these alone is faster than among the whole vocabulary (Jean et al. 2015, https://arxiv.org/abs/1412.2007,
section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from translator.config.options import MOST_CANDIDATES
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# The pieces that any output may hold: the special ones, and the most frequent.
SPECIAL = (PAD_ID, UNK_ID, BOS_ID, EOS_ID)
FREQUENT = 100


@dataclass(frozen=True)
class Shortlist:
    """Candidates for each of S source pieces among V target pieces."""

    candidates: Tensor  # (S, MOST_CANDIDATES), best first, then padding; none at all for a piece of which nothing is known
    counts: Tensor  # (V,), how often each target piece stands in the pairs learned from

    def fits(self, source_pieces: int, target_pieces: int) -> bool:
        """Whether it is for vocabularies of these sizes."""
        shapes = (source_pieces, MOST_CANDIDATES), (target_pieces,)
        return (self.candidates.shape, self.counts.shape) == shapes and bool(
            ((self.candidates >= 0) & (self.candidates < target_pieces)).all())

    def to(self, device: torch.device) -> Shortlist:
        return Shortlist(self.candidates.to(device), self.counts.to(device))

    def allowed(self, source: Tensor, candidates: int) -> Tensor:
        """The target pieces that outputs for each sentence of source (B, S) may hold, so many of each source piece: (B, V).

        All, where a sentence holds a piece of which nothing is known.
        """
        allowed = torch.zeros(len(source), len(self.counts), dtype=torch.bool, device=source.device)
        allowed.scatter_(1, self.candidates[source, :candidates].flatten(1), True)
        allowed[:, self.counts.topk(min(FREQUENT, len(self.counts))).indices] = True
        allowed[:, SPECIAL] = True
        unknown = ((self.candidates[source, 0] == PAD_ID) & (source != PAD_ID)).any(dim=1)
        return allowed | unknown[:, None]
