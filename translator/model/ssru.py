"""The simpler simple recurrent unit (SSRU), which can replace self-attention in the decoder.

Kim et al. 2019, https://aclanthology.org/D19-5632, section 3.1. Shapes: B sentences, T target length, D model width, K
hypotheses of each sentence, N active ones of all B x K.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from translator.model.active_hypotheses import ActiveHypotheses
from translator.model.kv_cache import move_to_front
from translator.runtime.device import to_matmul_dtype


class SSRU(nn.Module):
    """c_t = f_t * c_{t-1} + (1 - f_t) * (W x_t) with f_t = sigmoid(W_f x_t + b_f); the output is relu(c_t).

    A step costs the same at any length: it needs only c, where self-attention reads the keys and values of all tokens.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.joined = nn.Linear(d_model, 2 * d_model)  # W_f, then W

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """x (B, T, D) -> (B, T, D), and no attention weights."""
        forget, new = self.project(x)
        return recur(forget, new).relu().to(x.dtype), None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f_t and W x_t for x (..., D), in float32: half precision would round the state at each step."""
        forget, new = self.joined(to_matmul_dtype(x)).float().chunk(2, dim=-1)
        return forget.sigmoid(), new

    def step(self, x: Tensor, rows: ActiveHypotheses, state: RecurrentState) -> Tensor:
        """Compute `forward` for the newest tokens, x (N, D) -> (N, D), and update the state."""
        forget, new = self.project(x)
        states = torch.lerp(new, rows.pack(state.held), forget)
        state.held = rows.unpack(states)
        return states.relu().to(x.dtype)


class RecurrentState:
    """One layer's c of every hypothesis, (B, K, D)."""

    def __init__(self, memory: Tensor) -> None:
        """Begin with zeros: memory (B, S, D)."""
        self.held = torch.zeros(len(memory), 1, memory.size(2), device=memory.device)

    def reorder(self, parents: Tensor) -> None:
        """Continue hypothesis parents[b, k] as hypothesis k of sentence b; parents (B, K) may change K."""
        if not self.held.size(1) == parents.size(1) == 1:
            self.held = self.held.gather(1, parents[:, :, None].expand(-1, -1, self.held.size(2)))

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (B',), in this order."""
        move_to_front((self.held,), sentences)
        self.held = self.held[: len(sentences)]


def recur(forget: Tensor, new: Tensor) -> Tensor:
    """Return every c_t = f_t * c_{t-1} + (1 - f_t) * new_t with c_0 = 0: forget, new (B, T, D) -> (B, T, D).

    On a CPU a loop takes a tenth of the layer's linear map. A parallel scan took nine times as long as the loop.
    """
    state, states = torch.zeros_like(new[:, 0]), []
    for f, each in zip(forget.unbind(1), new.unbind(1), strict=True):
        state = torch.lerp(each, state, f)
        states.append(state)
    return torch.stack(states, dim=1)
