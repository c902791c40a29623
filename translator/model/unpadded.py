"""The real tokens of padded sentences as rows of a matrix.

Padding takes no work then of all that treats each token by itself; only attention has to see sentences again. Zhai et al. 2022,
ByteTransformer, https://arxiv.org/abs/2210.03052, "padding-free algorithm".

Shapes: B sentences, T tokens of the longest, N rows, H heads, K = D / H head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# N is a multiple of this, so that products have few shapes (`tune_cpu` in translator/runtime/cpu.py says why).
ROWS_TOGETHER = 2**4


class TokenRows:
    """First all real tokens, in their order, then a row of padding or some more, of which nothing may come.

    The first of these stands for all padding: where sentences are made of rows, every padded place takes that row. So what
    moves tokens one way moves gradients the other, as those of padding are zero.
    """

    def __init__(self, real: Tensor, heads: int) -> None:
        """real (B, T): which tokens are no padding; not all are. heads: H."""
        length = real.size(1)
        numbers = real.flatten().nonzero()[:, 0]
        self.count = len(numbers)  # of real tokens
        padding = int(real.flatten().int().argmin())
        more = ROWS_TOGETHER - self.count % ROWS_TOGETHER
        self._places = F.pad(numbers, (0, more), value=padding)  # (N,): of each row, among B x T
        self._rows = torch.full_like(real, self.count, dtype=torch.long)  # (B, T): of each place
        self._rows[real] = torch.arange(self.count, device=real.device)
        # The same for heads, whose K numbers of a token lie together on both sides: (N x H) and (B, H, T).
        head = torch.arange(heads, device=real.device)
        sentences, tokens = self._places[:, None] // length, self._places[:, None] % length
        self._places_of_heads = ((sentences * heads + head) * length + tokens).flatten()
        self._rows_of_heads = self._rows[:, None] * heads + head[:, None]

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (N, D)."""
        return _move(x.flatten(0, 1), self._places, self._rows.flatten())

    def split_heads(self, x: Tensor) -> Tensor:
        """(N, D) -> (B, H, T, K)."""
        shape = self._rows_of_heads.shape
        heads = _move(x.view(len(x) * shape[1], -1), self._rows_of_heads.flatten(), self._places_of_heads)
        return heads.view(*shape, -1)

    def join_heads(self, heads: Tensor) -> Tensor:
        """(B, H, T, K) -> (N, D)."""
        rows = _move(heads.reshape(-1, heads.size(3)), self._places_of_heads, self._rows_of_heads.flatten())
        return rows.view(len(self._places), -1)


def token_rows(real: Tensor, heads: int) -> TokenRows | None:
    """Those of tokens (B, T), of which these are real; None where there is no padding."""
    return None if real.all() else TokenRows(real, heads)


def _move(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """x[there], whose gradient goes to x as gradient[back]."""
    moved: Tensor = _Move.apply(x, there, back)
    return moved


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        [back] = ctx.saved_tensors
        return gradient.index_select(0, back), None, None
