"""The weights of every attention of a model, for one sentence and its translation, and what they say about heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from translator.data.batching import collate
from translator.model.attention import padding_mask
from translator.model.transformer import Transformer
from translator.text.tokenizer import PAD_ID

# Of a dead head: the least entropy, or the least weight of one key. It gives all queries nearly the same values.
DEAD = 0.95


@dataclass(frozen=True)
class AttentionMaps:
    """Weights of the heads H, layer by layer. Row t of T: what predicts target token t attended to; EOS is the last."""

    encoder: list[Tensor]  # (H, S, S)
    decoder: list[Tensor]  # (H, T, T): column t is the token before target token t, BOS the first. Empty with SSRUs
    cross: list[Tensor]  # (H, T, S)


@torch.no_grad()
def attention_maps(model: Transformer, source: Sequence[int], target: Sequence[int]) -> AttentionMaps:
    """Return the weights of `model`, in its present mode, for the ids of a pair, both with EOS."""
    with _recorded(model.self_attentions()) as weights:
        cross = cross_attention(model, source, target)
    layers = len(model.encoder)
    return AttentionMaps(weights[:layers], weights[layers:], cross)


@torch.no_grad()
def cross_attention(model: Transformer, source: Sequence[int], target: Sequence[int]) -> list[Tensor]:
    """Return only the weights from target to source, (H, T, S) of each layer, without the others in memory."""
    batch = collate([source], [target]).to(next(model.parameters()).device)
    _, cross = model.decode(
        batch.target_in, model.encode(batch.source), padding_mask(batch.source, PAD_ID), weights_of=range(len(model.decoder)))
    return [weights[0] for weights in cross]


def relative_entropy(weights: Tensor) -> Tensor:
    """Return each head's entropy as a share of the largest possible: (H, T, S) -> (H,).

    0: each query attends to one key. 1: it attends alike to all keys that it may see.
    """
    weights = weights.double()
    entropy = -torch.xlogy(weights, weights).sum(dim=(1, 2))
    most = (weights > 0).sum(dim=2).clamp(min=1).log().sum(dim=1)
    return entropy / most.clamp(min=1e-9)


def dead_heads(weights: Tensor) -> dict[int, int | None]:
    """Return the dead heads of (H, T, S), each with the one key that its queries attend to; None: to all keys alike."""
    if min(weights.shape[1:]) < 5:  # too few to judge by
        return {}
    most, keys = weights.float().mean(dim=1).max(dim=1)
    dead: dict[int, int | None] = {}
    for head, entropy in enumerate(relative_entropy(weights).tolist()):
        if entropy > DEAD or most[head] > DEAD:
            dead[head] = None if entropy > DEAD else int(keys[head])
    return dead


@contextmanager
def _recorded(attentions: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Append the weights of each call of these modules, for its one sentence, to a list."""
    weights: list[Tensor] = []
    with ExitStack() as hooks:
        for attention in attentions:
            hooks.enter_context(attention.register_forward_pre_hook(
                lambda _, args, options: (args, options | {"need_weights": True}), with_kwargs=True))
            hooks.enter_context(attention.register_forward_hook(lambda _, args, output: weights.append(output[1][0])))
        yield weights
