"""Lexical probabilities of both directions, and the links they make between the pieces of a sentence pair.

The product of both directions' posteriors is far more precise than one of them (Liang, Taskar and Klein 2006,
https://aclanthology.org/N06-1014, section 2.2). EOS serves as the empty word. `translator.data.ibm_model_1` learns a lexicon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translator.text.tokenizer import EOS_ID, PAD_ID

# Stands for pairs of pieces that the lexicon lacks.
UNSEEN = 1e-9
# How steeply a link's prior falls with the difference of relative positions, so that repeated words link in order. Dyer et al.
# 2013, https://aclanthology.org/N13-1073, section 2, learn about 4: too steep for German verbs.
TENSION = 1.0
# Least product of posteriors that counts as a link.
LEAST_AGREEMENT = 0.05
# With attention: the agreement granted to all pairs, so that attention decides where the lexicon knows nothing, and the least
# product that is evidence. Attention of half a row suffices, or a fifth of a row with an agreement of 0.05.
GRANTED, LEAST_EVIDENCE = 0.03, 0.015


@dataclass(frozen=True)
class Lexicon:
    """Pairs of a source and a target piece that translate each other; the others are left out."""

    keys: Tensor  # (K,) int64, sorted: source piece x target_pieces + target piece
    forward: Tensor  # (K,) float32: p(target piece | source piece)
    backward: Tensor  # (K,) float32: p(source piece | target piece)
    target_pieces: int

    def tensors(self) -> dict[str, Tensor]:
        return {"keys": self.keys, "forward": self.forward, "backward": self.backward}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], target_pieces: int) -> Lexicon | None:
        """Return the lexicon of `tensors`; None where they are not a lexicon's."""
        if set(tensors) != {"keys", "forward", "backward"}:
            return None
        return cls(tensors["keys"], tensors["forward"], tensors["backward"], target_pieces)

    def fits(self, source_pieces: int) -> bool:
        """Return whether it is for this many source pieces, and as it was written."""
        return len(self.keys) > 0 and self.keys.shape == self.forward.shape == self.backward.shape and bool(
            (self.keys[1:] > self.keys[:-1]).all() and self.keys[0] >= 0 and self.keys[-1] < source_pieces * self.target_pieces)

    def to(self, device: torch.device) -> Lexicon:
        return Lexicon(self.keys.to(device), self.forward.to(device), self.backward.to(device), self.target_pieces)

    def agreement(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the probability by both directions that a target piece translates a source piece: (B, T, S), 0 to 1.

        source (B, S) and target (B, T) are ids with EOS and padding; padding gets 0.
        """
        keys = source[:, None, :] * self.target_pieces + target[:, :, None]  # (B, T, S)
        places = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        known = self.keys[places] == keys
        prior = _prior(source, target)
        forward, backward = ((table[places] * known + UNSEEN) * prior for table in (self.forward, self.backward))
        smallest = torch.finfo(prior.dtype).tiny
        return (forward / forward.sum(2, keepdim=True).clamp_(min=smallest)
                * (backward / backward.sum(1, keepdim=True).clamp_(min=smallest)))

    def support(self, attention: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return the evidence for each link by attention (B, T, S) and agreement together, 0 to 1; a row of zeros: none.

        source (B, S) and target (B, T) are ids with EOS and padding.
        """
        evidence = attention * (self.agreement(source, target) + GRANTED)
        return evidence.masked_fill_(evidence.amax(dim=2, keepdim=True) < LEAST_EVIDENCE, 0) / (1 + GRANTED)

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int | None]:
        """Return for each target piece the number of the source piece it translates; None where no piece has evidence.

        Both sides are ids with EOS last, which is never linked: the list is one shorter than target.
        """
        agreement = self.agreement(torch.tensor([source]), torch.tensor([target]))[0]
        best = agreement.max(dim=1)
        return [number if value >= LEAST_AGREEMENT and source[number] != EOS_ID else None
                for value, number in zip(best.values[:-1].tolist(), best.indices[:-1].tolist(), strict=True)]


def _prior(source: Tensor, target: Tensor) -> Tensor:
    """Return the prior of each link, (B, T, S), at most 1: it falls with the distance from the diagonal; 0 for padding."""
    relative = []
    for ids in (source, target):
        lengths = (ids != PAD_ID).sum(1, keepdim=True).clamp(min=1)
        relative.append(torch.arange(ids.size(1), device=ids.device) / lengths)
    real = (source != PAD_ID)[:, None, :] & (target != PAD_ID)[:, :, None]
    return torch.exp(-TENSION * (relative[0][:, None, :] - relative[1][:, :, None]).abs()) * real
