"""Masked multi-head attention: masks, the formula, and the module built on it.

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762, section 3.2.

Shapes: B batch, H heads, T query length, S key length, D model width, K = D / H head width. Masks are boolean, True where
a query may attend to a key, broadcastable to the weights (B, H, T, S). A query that may attend to nothing gets zeros,
forward and backward.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translator.model.active_hypotheses import OpenRows
from translator.model.dropout import dropout
from translator.model.inference_layers import linear_of
from translator.model.kv_cache import FORBIDDEN, KeyValueCache, Past
from translator.model.positions import RelativeBias, RotaryPositions
from translator.runtime.cpu import onednn
from translator.runtime.device import to_matmul_dtype

# On a CPU the formula is the faster one, or level with the fused kernel, up to about this many keys...
CPU_FUSED_FROM = 512
# ... but for up to so many sentences and scores, where nothing is masked or trained: calls cost more than what they compute.
CPU_FUSED_UP_TO = 8
CPU_FUSED_SCORES = 2**13
# Numbers in a CPU's vectors: PyTorch takes the softmax of shorter rows one number at a time, up to fifteen times as slowly.
VECTORS = {"AVX2": 8, "AVX512": 16}
# Fewer numbers than these are had sooner one by one than lengthened.
WORTH_LENGTHENING = 2**9
# Fewest queries that windowed attention takes together: smaller products do not keep a processor busy.
WINDOW_BLOCK = 64


def padding_mask(ids: Tensor, pad_id: int) -> Tensor | None:
    """Keys that are real tokens: (B, S) ids -> (B, 1, 1, S); see `keys_mask`."""
    return keys_mask(ids != pad_id)


def keys_mask(allowed: Tensor) -> Tensor | None:
    """Keys that every query may attend to: (B, S) -> (B, 1, 1, S). None, to spare work, where it is seen to be all."""
    return None if _seen_to_be_all(allowed) else allowed[:, None, None, :]


def forbidding(mask: Tensor) -> Tensor:
    """What added to scores forbids all that `mask` does not allow: the lowest number, which swallows any score, else zero."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, FORBIDDEN)


def window_mask(
    query_length: int, key_length: int, *, window: int, causal: bool, device: torch.device | None = None
) -> Tensor:
    """Each query sees the keys at most `window` positions away, only earlier ones and itself if `causal`: (T, S).

    The queries are the last T of the S positions. Local attention: Beltagy et al. 2020, https://arxiv.org/abs/2004.05150.
    """
    keys = torch.arange(key_length, device=device)
    queries = torch.arange(key_length - query_length, key_length, device=device)
    distance = queries[:, None] - keys[None, :]  # (T, S), positive where the key came earlier
    return (distance <= window) & (distance >= (0 if causal else -window))


def scaled_dot_product_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(K) + bias) V, the formula of section 3.2.1, and its weights.

    queries (B, H, T, K), keys and values (B, H, S, K); mask and bias broadcastable to (B, H, T, S).
    Returns the output (B, H, T, K) and the weights before dropout (B, H, T, S).
    """
    scores = _product(queries, keys.transpose(-2, -1)).float().div_(math.sqrt(queries.size(-1)))
    if bias is not None:
        scores = scores.add_(bias)
    if mask is not None:
        scores = scores.add_(forbidding(mask))  # a CPU adds sooner than it fills in
    weights = _softmax(scores)  # in float32, whatever the inputs: half-precision sums lose long rows
    if mask is not None:
        seeing = mask.any(dim=-1, keepdim=True)
        if not _seen_to_be_all(seeing):
            weights = weights.masked_fill(~seeing, 0.0)  # a row of masked keys alone came out uniform: make it zero
    return _product(dropout(weights, dropout_p).to(values.dtype), values), weights


def fused_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """What `scaled_dot_product_attention` returns first, by PyTorch's kernel, which never stores the weights.

    `causal` asks for the triangular mask (T = S) without building it; it goes with neither mask nor bias.
    """
    if mask is None:
        if bias is not None:
            # A GPU's kernel reads it by 16 bytes from its first number on, wherever a window may have left that.
            askew = bias.device.type == "cuda" and not torch.compiler.is_compiling() and bias.storage_offset() % 16 > 0
            bias = bias.to(queries.dtype, copy=askew)
        with onednn(keys.size(2) >= CPU_FUSED_FROM or not _suffers_from_onednn(queries)):
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=bias, dropout_p=dropout_p, is_causal=causal)
    # Kernels differ in what they make of a row without keys, some of it NaN: let such a row see everything, then zero it.
    seeing = mask.any(dim=-1, keepdim=True)
    allowed = mask | ~seeing
    if bias is not None:
        allowed = bias.masked_fill(~allowed, -torch.inf).to(queries.dtype)
    output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed, dropout_p=dropout_p)
    return output.masked_fill(~seeing, 0.0)


def windowed_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    window: int,
    causal: bool,
    mask: Tensor | None = None,
    relative: RelativeBias | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """`fused_attention` under `window_mask`, in time and memory that grow with the length instead of with its square.

    queries, keys, values (B, H, T, K), mask of keys (B, 1, 1, T) -> (B, H, T, K). Queries are taken in blocks, each with the
    keys that its window can reach (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 3.1 and appendix A).
    """
    batch, _, length, _ = queries.shape
    block, ahead = max(window, WINDOW_BLOCK), 0 if causal else window
    span = window + block + ahead  # keys that a block's queries reach
    blocks = -(-length // block)
    missing = blocks * block - length

    def reached(x: Tensor) -> Tensor:
        """Of (B, H, T, K), what each block reaches: (B x blocks, H, span, K)."""
        padded = F.pad(x, (0, 0, window, missing + ahead))
        return padded.unfold(2, span, block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    real = torch.ones(1, 1, 1, length, dtype=torch.bool, device=queries.device) if mask is None else mask
    near = window_mask(block + ahead, span, window=window, causal=causal, device=queries.device)[:block]
    allowed = near & reached(real.transpose(2, 3).expand(batch, -1, -1, -1)).transpose(2, 3)  # (B x blocks, 1, block, span)
    at = torch.arange(span, device=queries.device)
    bias = None if relative is None else relative(at[window : window + block], at)
    grouped = F.pad(queries, (0, 0, 0, missing)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
    heads = fused_attention(grouped, reached(keys), reached(values), mask=allowed, bias=bias, dropout_p=dropout_p)
    return heads.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2): Concat(head_1, ..., head_H) W_o, head_i = Attention(Q W_q, K W_k, V W_v).

    One module serves as self-attention (`memory` left out), cross-attention (`memory` given), causal and windowed
    attention, and cached step-wise decoding.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        causal: bool = False,
        window: int | None = None,
        rotary: RotaryPositions | None = None,
        relative: RelativeBias | None = None,
    ) -> None:
        """`window`: tokens each side that a token may see, all if None. `rotary` and `relative`: for self-attention."""
        super().__init__()
        self.num_heads = num_heads
        self.head_width = d_model // num_heads
        self.dropout = dropout
        self.causal = causal
        self.window = window
        self.rotary = rotary
        self.relative = relative
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.joined: nn.Linear | None = None  # what `join` makes of some of them

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None, need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (B, T, D) to `memory` (B, S, D), or to x itself.

        `memory` may hold fewer sentences, over which x then goes several times, all of them each time.

        `mask`: keys allowed besides what causality and window allow, broadcastable to (B, H, T, S).
        Returns the output (B, T, D), and the weights (B, H, T, S) if `need_weights`.
        """
        x = to_matmul_dtype(x)
        if memory is None:
            queries, keys, values = self._queries_keys_values(x)
        else:
            queries = self._split_heads(self.W_q(x))
            keys, values = self.keys_values(memory)
            if (times := len(queries) // len(keys)) > 1:
                keys, values = keys.repeat(times, 1, 1, 1), values.repeat(times, 1, 1, 1)
        length, key_length = queries.size(2), keys.size(2)
        if self.window is not None and not need_weights and _pays_in_blocks(self.window, length, key_length, mask):
            heads = windowed_attention(
                queries, keys, values, window=self.window, causal=self.causal, mask=mask, relative=self.relative,
                dropout_p=self.dropout if self.training else 0.0)
            return self.W_o(_join_heads(heads)), None
        bias = None if self.relative is None else self.relative(_positions(queries), _positions(keys))
        all_keys = self.causal and self.window is None and mask is None and bias is None and length == key_length
        if all_keys and not need_weights and _fused_pays(queries, keys, masked=False):
            heads = fused_attention(queries, keys, values, causal=True, dropout_p=self.dropout if self.training else 0.0)
            return self.W_o(_join_heads(heads)), None
        mask = self._restrict(mask, length, key_length, x.device)
        heads, weights = self._weigh(queries, keys, values, mask, bias, need_weights=need_weights)
        return self.W_o(_join_heads(heads)), weights

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (B, H, S, K) of memory (B, S, D), for cross-attention."""
        if self.joined is not None:
            keys, values = self._split_joined(self.joined(memory))
            return keys, values
        memory = to_matmul_dtype(memory)
        return self._split_heads(self.W_k(memory)), self._split_heads(self.W_v(memory))

    def join(self, *names: str) -> None:
        """Have one product do what these maps do, in their place, for decoding alone.

        "W_q", "W_k", "W_v" of self-attention; "W_k", "W_v" of cross-attention.
        """
        maps = [getattr(self, name) for name in names]
        self.joined = linear_of(torch.cat([W.weight for W in maps]), torch.cat([W.bias for W in maps]))
        for name in names:
            delattr(self, name)

    def maps(self) -> list[nn.Linear]:
        """To queries, keys and values, whether or not some are joined."""
        if self.joined is None:
            return [self.W_q, self.W_k, self.W_v]
        width = self.num_heads * self.head_width
        parts = zip(self.joined.weight.split(width), self.joined.bias.split(width), strict=True)
        joined = [linear_of(weight, bias) for weight, bias in parts]
        return joined if len(joined) == 3 else [self.W_q, *joined]

    def step(self, x: Tensor, rows: OpenRows, cache: KeyValueCache, past: Past) -> Tensor:
        """Self-attention of the newest tokens of N of the K hypotheses of B sentences, x (N, D) -> (N, D).

        Each attends to its own past, which `cache` holds and `past` tells, as in the causal pass over all its tokens.
        """
        if self.joined is not None:
            mapped = self.joined(x)
        else:
            x = to_matmul_dtype(x)
            mapped = torch.cat([W(x) for W in self.maps()], dim=1)
        newest = self._split_joined(rows.unpack(mapped))  # (3, B, H, hypotheses, K)
        if self.rotary is not None:
            newest = torch.cat([self.rotary(newest[:2], past.now), newest[2:]])
        cache.write(newest[1:], past)
        first = 0 if self.window is None else int(
            torch.searchsorted(past.positions[: past.entries], past.length - 1 - self.window))
        near = slice(first, past.reach)
        bias = None if past.bias is None else past.bias[..., near]
        if self.relative is not None:
            relative = self.relative(past.now, past.positions[near])
            bias = relative if bias is None else relative + bias
        keys, values = cache.held[:, :, :, near].unbind()
        heads, _ = self._weigh(newest[0], keys, values, None, bias)
        return self.W_o(rows.pack(_join_heads(heads)))

    def step_across(
        self, x: Tensor, rows: OpenRows, memory: tuple[Tensor, Tensor], *, bias: Tensor | None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-attention of the same tokens, x (N, D) -> (N, D); the weights (B, H, K, S) if `need_weights`.

        memory: its keys and values, (B, H, S, K) each, shared by all hypotheses of a sentence, whose queries stand side by
        side; bias (B, 1, 1, S): `forbidding` all but real tokens, None where all are.
        """
        queries = self._split_heads(rows.unpack(self.W_q(x)))
        heads, weights = self._weigh(queries, *memory, None, bias, need_weights=need_weights)
        return self.W_o(rows.pack(_join_heads(heads))), weights

    def _weigh(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, bias: Tensor | None, *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What the heads find, (B, H, T, K), by the faster path; the weights (B, H, T, S) only if asked for."""
        dropout_p = self.dropout if self.training else 0.0
        if not need_weights and _fused_pays(queries, keys, masked=mask is not None):
            heads = fused_attention(queries, keys, values, mask=mask, bias=bias, dropout_p=dropout_p)
            return heads, None
        heads, weights = scaled_dot_product_attention(queries, keys, values, mask=mask, bias=bias, dropout_p=dropout_p)
        return heads, weights if need_weights else None

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Those of x (B, T, D), for self-attention, each (B, H, T, K)."""
        if self.joined is not None:
            queries, keys, values = self._split_joined(self.joined(x))
        else:
            queries, keys, values = (self._split_heads(W(x)) for W in self.maps())
        return self._turn(queries), self._turn(keys), values

    def _turn(self, heads: Tensor) -> Tensor:
        return heads if self.rotary is None else self.rotary(heads, _positions(heads))

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)

    def _split_joined(self, x: Tensor) -> Tensor:
        heads = x.view(*x.shape[:-1], -1, self.num_heads, self.head_width)
        return heads.permute(2, 0, 3, 1, 4)  # (B, T, maps x D) -> (maps, B, H, T, K)

    def _restrict(self, mask: Tensor | None, length: int, key_length: int, device: torch.device) -> Tensor | None:
        """`mask` together with causality and window; None where nothing is forbidden."""
        if (self.window is None or self.window >= key_length - 1) and not self.causal:
            return mask
        window = key_length if self.window is None else self.window
        local = window_mask(length, key_length, window=window, causal=self.causal, device=device)
        return local if mask is None else mask & local


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, of many small matrices."""
    with onednn(not _suffers_from_onednn(left)):
        return left @ right


def _suffers_from_onednn(x: Tensor) -> bool:
    """Whether many small products of x are had sooner without it, as of float32 in decoding on a CPU.

    It takes longer to begin than a small one takes, and copies keys with room behind them.
    """
    in_decoding = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    return in_decoding and x.dtype == torch.float32 and x.device.type == "cpu"


def _softmax(scores: Tensor) -> Tensor:
    """Over the last dimension; rows too short for a CPU's vectors are lengthened meanwhile."""
    missing = 0
    if scores.device.type == "cpu" and not torch.compiler.is_compiling() and scores.numel() >= WORTH_LENGTHENING:
        missing = VECTORS.get(torch.backends.cpu.get_cpu_capability(), 0) - scores.size(-1)
    if missing <= 0:
        return scores.softmax(dim=-1)
    return F.pad(scores, (0, missing), value=-torch.inf).softmax(dim=-1)[..., :-missing]


def _seen_to_be_all(allowed: Tensor) -> bool:
    """Whether all are allowed. False where it cannot be seen without waiting for a device, or in a graph."""
    return allowed.device.type == "cpu" and not torch.compiler.is_compiling() and bool(allowed.all())


def _join_heads(heads: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, D)."""
    return heads.transpose(1, 2).flatten(2)


def _positions(heads: Tensor) -> Tensor:
    """0 to the last token of (B, H, T, K): (T,)."""
    return torch.arange(heads.size(2), device=heads.device)


def _fused_pays(queries: Tensor, keys: Tensor, *, masked: bool) -> bool:
    """Whether PyTorch's kernel outruns the formula."""
    if queries.device.type != "cpu" or keys.size(2) >= CPU_FUSED_FROM:
        return True
    if masked or torch.is_grad_enabled():
        return False
    batch, heads, length, _ = queries.shape
    return batch <= CPU_FUSED_UP_TO and batch * heads * length * keys.size(2) <= CPU_FUSED_SCORES


def _pays_in_blocks(window: int, length: int, key_length: int, mask: Tensor | None) -> bool:
    """Whether `windowed_attention` can serve and pays: a long sequence attends to itself, under a mask of keys alone."""
    of_keys = mask is None or mask.size(-2) == 1
    return of_keys and length == key_length >= 4 * max(window, WINDOW_BLOCK)
