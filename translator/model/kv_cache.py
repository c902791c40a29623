"""What step-wise decoding remembers of the tokens so far: keys, values, and whose they are.

Shapes: B sentences, K hypotheses of each where tokens are counted, H heads, E entries; of keys and values the last is the width
of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

# Entries by which the room for decoded tokens grows, at least.
ROOM_STEP = 48
# Products take entries by so many: fewer shapes occur, for each of which a library may write code.
REACH_STEP = 16
# Added to a score it swallows it; minus infinity would make NaN of a row without keys.
FORBIDDEN = torch.finfo(torch.float32).min


class Past:
    """Where the tokens decoded so far stand, and which of them each hypothesis descends from.

    A search drops hypotheses and continues others more than once. Instead of moving keys and values about, every token's stay
    in the entry where they were written, and each hypothesis is told which entries are its own: a bias, gathered by parent.
    When the room is taken, the entries from which no hypothesis descends any more, most of the older ones, make room for new
    ones.
    """

    def __init__(self, device: torch.device) -> None:
        self.length = 0  # tokens of each hypothesis
        self.entries = 0  # taken
        self.positions = torch.zeros(0, dtype=torch.long, device=device)  # (room,)
        self._hides: Tensor | None = None  # (B, K, room); None while each sentence has had but one hypothesis: it sees all

    @property
    def room(self) -> int:
        return len(self.positions)

    @property
    def reach(self) -> int:
        """The entries that are worth taking, the first so many: where some are hidden, a few that are empty round them up."""
        return self.entries if self._hides is None else min(self.room, -(-self.entries // REACH_STEP) * REACH_STEP)

    @property
    def now(self) -> Tensor:
        """The position of the newest tokens: (1,)."""
        return self.positions[self.entries - 1 : self.entries]

    @property
    def bias(self) -> Tensor | None:
        """To be added to scores (B, H, K, reach): FORBIDDEN where a hypothesis may not attend, else 0; None: 0 everywhere."""
        return None if self._hides is None else self._hides[:, None, :, : self.reach]

    def append(self, hypotheses: int) -> None:
        """A new token for each of so many hypotheses a sentence, which sees itself and its past."""
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
        """Give up entries that nobody sees, where room for the next tokens is wanting: those to keep, (B, E), in order.

        As a position's entries stay side by side, and as many in every sentence as the neediest has, positions stay shared.
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
        if self.entries > self.room // 2:  # or the same would have to be done again soon
            self._grow()
        return order

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis k of sentence b goes on from hypothesis parents[b, k]; parents (B, K)."""
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
    """One layer's keys and values of the tokens decoded so far, of all hypotheses of a sentence side by side.

    Of the room that a `Past` has, whose entries they take, what is not taken may be anything finite.
    """

    def __init__(self) -> None:
        self.held = torch.empty(0)  # (2, B, H, room, K): keys, then values

    def write(self, newest: Tensor, past: Past) -> None:
        """Enter the newest tokens' keys and values, (2, B, H, hypotheses, K), which `past` has counted."""
        if not self.held.numel():
            self.held = newest.new_zeros(*newest.shape[:3], past.room, newest.size(4))
        elif self.held.size(3) < past.room:
            self.held = F.pad(self.held, (0, 0, 0, past.room - self.held.size(3)))
        self.held[:, :, :, past.entries - newest.size(3) : past.entries] = newest

    def keep(self, entries: Tensor) -> None:
        """Move the entries (B, E) of each sentence to the front."""
        _, batch, heads, room, _ = self.held.shape
        first = torch.arange(0, batch * heads * room, room, device=entries.device).view(batch, heads, 1)
        rows = first + entries[:, None]  # (B, H, E) of the B x H x room; `gather` would be told of every number
        for each in (self.held[0], self.held[1]):
            each[:, :, : entries.size(1)] = each.flatten(0, 2).index_select(0, rows.flatten()).unflatten(0, rows.shape)

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (B',), in this order."""
        if self.held.numel():
            move_to_front((self.held[0], self.held[1]), sentences)
            self.held = self.held[:, : len(sentences)]


def move_to_front(held: Sequence[Tensor], sentences: Tensor) -> None:
    """Write those of some sentences over the first of all, (B, ...) each: what stays in its place is not copied."""
    moved = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
    for each in held:
        each.index_copy_(0, moved, each.index_select(0, sentences[moved]))
