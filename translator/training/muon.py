"""Muon: momentum with orthogonalised updates.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from translator.runtime.distributed import map_rows, shard_like, stack_full_tensors
from translator.training.uncompiled import Uncompiled

MOMENTUM = 0.95
# Polynomials a x + b x^3 + c x^5 of the Newton-Schulz iteration, one per step, that bring singular values of 0.01 to 1 nearest
# to 1 (Polar Express, Amsel et al. 2025, https://arxiv.org/abs/2505.16932, section 3). Five steps of one polynomial are usual;
# three of these cost less, and train better than three of that (docs/recipes.md).
POLYNOMIALS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
# Least divisor of a gradient: one of zeros makes no update.
SMALLEST_NORM = 1e-7


class Muon(Uncompiled):
    """Muon with Nesterov's momentum and decoupled weight decay, for matrices (m, n).

    An update is scaled by 0.2 sqrt(max(m, n)), to the size of AdamW's (Liu et al. 2025, https://arxiv.org/abs/2502.16982,
    section 2.2), so that both share a learning rate. The iteration runs in `dtype`; PyTorch's own Muon always takes bf16,
    which is slow on CPUs without bf16 units. Processes share the work matrix by matrix; of sharded ones each keeps its part.
    """

    def __init__(
        self, matrices: Iterable[Tensor], *, lr: float, weight_decay: float = 0.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient, those of one shape in one batch."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            gradients = [matrix.grad for matrix in matrices]
            momenta = [self._momentum(matrix) for matrix in matrices]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            torch._foreach_lerp_(gradients, momenta, MOMENTUM)  # in place: nobody needs the gradients again
            by_shape: dict[torch.Size, dict[Tensor, Tensor]] = defaultdict(dict)
            for matrix, direction in zip(matrices, gradients, strict=True):
                by_shape[matrix.shape][matrix] = direction
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            for shape, directions in by_shape.items():
                stacked = stack_full_tensors(list(directions.values()))
                updates = map_rows(partial(orthogonalised, dtype=self.dtype), stacked)
                updates = updates.to(torch.float32, memory_format=torch.contiguous_format)
                updates *= -group["lr"] * 0.2 * math.sqrt(max(shape))
                torch._foreach_add_(
                    list(directions), [shard_like(update, matrix) for matrix, update in zip(directions, updates, strict=True)])

    def _momentum(self, matrix: Tensor) -> Tensor:
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        return state["momentum_buffer"]


def orthogonalised(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about U V^T of every matrix U S V^T of (N, m, n), by Newton-Schulz iteration in `dtype`.

    The singular values come out between 0.73 and 1.27; those below 0.01 of the matrix's norm stay smaller. The steps act on
    the small Gram matrix X X^T only, and X is multiplied once, by the product of their polynomials (Gram Newton-Schulz,
    https://dao-lab.ai/blog/2026/gram-newton-schulz). So few steps leave rounding in bf16 no time to grow.
    """
    wide = matrices.size(1) <= matrices.size(2)
    x = matrices.to(dtype)
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM)  # no singular value above 1
    gram = x @ x.mT
    factor = factors = _polynomial(gram, *POLYNOMIALS[0])
    for coefficients in POLYNOMIALS[1:]:
        gram = factor @ gram @ factor
        factor = _polynomial(gram, *coefficients)
        factors = factor @ factors
    x = factors @ x
    return x if wide else x.mT


def _polynomial(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a I + b G + c G^2 of every G of (N, m, m)."""
    result = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    result.diagonal(dim1=1, dim2=2).add_(a)
    return result
