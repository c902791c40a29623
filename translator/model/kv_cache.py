"""Key/value cache for incremental decoding.

Shapes: B sentences, K hypotheses of each, H heads, E cache entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from translator.model.attention import FORBIDDEN

# Smallest number of entries by which a cache grows.
ROOM_STEP = 48
# Products read entries in multiples of this: few shapes occur, and a library may prepare code for each.
REACH_STEP = 16


class Past:
    """Which cache entries hold the tokens of each hypothesis.

    A search drops hypotheses and continues others more than once. Keys and values are not moved for that: each stays in its
    entry, and a bias, gathered by parent, hides from a hypothesis the entries of others. When the cache is full, entries
    that no hypothesis sees any more make room for new ones.
    """

    def __init__(self, device: torch.device) -> None:
        self.length = 0  # tokens of each hypothesis
        self.entries = 0  # in use
        self.positions = torch.zeros(0, dtype=torch.long, device=device)  # (room,)
        self._hides: Tensor | None = None  # (B, K, room), the bias; None while each sentence has had only one hypothesis

    @property
    def room(self) -> int:
        """The number of entries, in use or not."""
        return len(self.positions)

    @property
    def reach(self) -> int:
        """How many entries attention reads: those in use, rounded up where hidden ones are possible."""
        return self.entries if self._hides is None else min(self.room, -(-self.entries // REACH_STEP) * REACH_STEP)

    @property
    def now(self) -> Tensor:
        """The position of the newest tokens: (1,)."""
        return self.positions[self.entries - 1 : self.entries]

    @property
    def bias(self) -> Tensor | None:
        """The bias to add to scores (B, H, K, reach): FORBIDDEN for entries of other hypotheses, else 0. None: all 0."""
        return None if self._hides is None else self._hides[:, None, :, : self.reach]

    def append(self, hypotheses: int) -> None:
        """Add a token for each of a sentence's hypotheses. It sees itself and its past."""
        first, self.entries = self.entries, self.entries + hypotheses
        if self.entries > self.room:
            self._grow()
        self.positions[first : self.entries] = self.length
        if self._hides is not None:
            self._hides[:, :, first : self.entries].fill_(FORBIDDEN).diagonal(dim1=1, dim2=2).zero_()
        self.length += 1

    def _grow(self) -> None:
        more = -(-(self.entries + self.room // 2) // ROOM_STEP) * ROOM_STEP - self.room
        self.positions = F.pad(self.positions, (0, more))
        self._hides = None if self._hides is None else F.pad(self._hides, (0, more), value=FORBIDDEN)

    def drop_unseen(self) -> Tensor | None:
        """Free entries that no hypothesis sees, if the next tokens need room. Return those to keep, (B, E), in order.

        Every sentence keeps the same number of entries for a position, so that all share `positions`.
        """
        if self._hides is None or not self.entries or self.entries + self._hides.size(1) <= self.room:
            return None
        positions, seen = self.positions[: self.entries], (self._hides[:, :, : self.entries] == 0).any(dim=1)
        order = (2 * positions + ~seen).argsort(dim=1, stable=True)  # (B, entries): of each position the seen ones first
        needed = seen.gather(1, order).any(dim=0)
        order = order[:, needed]
        self.entries = order.size(1)
        self.positions[: self.entries] = positions[needed]
        kept = self._hides.gather(2, order[:, None].expand(-1, self._hides.size(1), -1))
        self._hides = F.pad(kept, (0, self.room - self.entries), value=FORBIDDEN)
        if self.entries > self.room // 2:  # else the next steps would repeat this
            self._grow()
        return order

    def reorder(self, parents: Tensor) -> None:
        """Continue hypothesis parents[b, k] as hypothesis k of sentence b; parents (B, K)."""
        if self._hides is None:
            if parents.size(1) == 1:
                return
            self._hides = torch.zeros(len(parents), 1, self.room, device=self.positions.device)
            self._hides[:, :, self.entries :] = FORBIDDEN
        self._hides = self._hides.gather(1, parents[:, :, None].expand(-1, -1, self.room))

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (B',), in this order."""
        if self._hides is not None:
            self._hides = self._hides[sentences]


class KeyValueCache:
    """One layer's keys and values of the tokens decoded so far, in the entries that a `Past` gives them.

    Entries not in use hold finite numbers.
    """

    def __init__(self) -> None:
        self.held = torch.empty(0)  # (2, B, H, room, head width): keys, then values

    def write(self, newest: Tensor, past: Past) -> None:
        """Write the newest tokens' keys and values (2, B, H, K, head width), after `past.append`."""
        if not self.held.numel():
            self.held = newest.new_zeros(*newest.shape[:3], past.room, newest.size(4))
        elif self.held.size(3) < past.room:
            self.held = F.pad(self.held, (0, 0, 0, past.room - self.held.size(3)))
        self.held[:, :, :, past.entries - newest.size(3) : past.entries] = newest

    def keep(self, entries: Tensor) -> None:
        """Move the entries (B, E) of each sentence to the front."""
        _, batch, heads, room, _ = self.held.shape
        first = torch.arange(0, batch * heads * room, room, device=entries.device).view(batch, heads, 1)
        rows = first + entries[:, None]  # (B, H, E) of the B x H x room; `gather` needs an index per number
        for each in (self.held[0], self.held[1]):
            each[:, :, : entries.size(1)] = each.flatten(0, 2).index_select(0, rows.flatten()).unflatten(0, rows.shape)

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (B',), in this order."""
        if self.held.numel():
            move_to_front((self.held[0], self.held[1]), sentences)
            self.held = self.held[:, : len(sentences)]


def move_to_front(held: Sequence[Tensor], sentences: Tensor) -> None:
    """Move these sentences to the front of tensors (B, ...), in place. A sentence that keeps its place is not copied."""
    moved = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
    for each in held:
        each.index_copy_(0, moved, each.index_select(0, sentences[moved]))
