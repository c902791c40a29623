"""How much each attention head matters, by gradients: Michel et al. 2019, "Are Sixteen Heads Really Better than One?".

https://arxiv.org/abs/1905.10650
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from translator.compression.parts import ATTENTIONS, Heads
from translator.config.heads import Attention
from translator.data.batching import Batch
from translator.model.attention import MultiHeadAttention
from translator.model.transformer import Transformer
from translator.runtime.errors import UserError
from translator.text.tokenizer import PAD_ID
from translator.training.loss import projected_cross_entropy

# The heads of each layer (H,), by kind of attention.
Importance = dict[Attention, list[Tensor]]
Masks = list[Tensor]  # (B, H) of the sentences of each call


def head_importance(model: Transformer, batches: Iterable[Batch]) -> Importance:
    """Return the expected absolute derivative of a sentence's loss by a factor of the head's output (section 4.1).

    The importances of a layer's heads are divided by their l2 norm. The model must be in eval mode.
    """
    model.requires_grad_(False)
    attentions = {
        kind: [getattr(layer, part) for layer in getattr(model, side)] for kind, (side, part) in ATTENTIONS.items()
        if kind != "decoder" or model.config.decoder == "attention"}  # an SSRU has no heads
    sums = {kind: [torch.zeros(each.num_heads) for each in of_layers] for kind, of_layers in attentions.items()}
    device = next(model.parameters()).device
    for batch in batches:
        with ExitStack() as hooks, torch.enable_grad():
            masks = {kind: [hooks.enter_context(_masked(each)) for each in of_layers] for kind, of_layers in attentions.items()}
            loss = _loss(model, batch.to(device))
        loss.backward()
        for kind, of_layers in masks.items():
            for total, of_calls in zip(sums[kind], of_layers, strict=True):
                total += sum(mask.grad.abs().sum(dim=0).cpu() for mask in of_calls if mask.grad is not None)
    smallest = torch.finfo(torch.float32).tiny
    return {kind: [total / total.norm().clamp(min=smallest) for total in of_layers] for kind, of_layers in sums.items()}


@contextmanager
def _masked(attention: MultiHeadAttention) -> Iterator[Masks]:
    """Inside, multiply each head by a factor of 1 for each sentence, and list these factors of every call."""
    masks: Masks = []

    def apply(_: Any, args: tuple[Tensor]) -> Tensor:
        [heads] = args  # (B, T, H x K)
        masks.append(torch.ones(len(heads), attention.num_heads, device=heads.device, requires_grad=True))
        return (heads.unflatten(-1, (attention.num_heads, -1)) * masks[-1][:, None, :, None]).flatten(-2)

    hook = attention.W_o.register_forward_pre_hook(apply)
    yield masks
    hook.remove()


def _loss(model: Transformer, batch: Batch) -> Tensor:
    """Return the cross-entropy of a batch, summed over its sentences."""
    real = batch.target_out != PAD_ID
    hidden = model.hidden(batch.source, batch.target_in, real)
    loss, _ = projected_cross_entropy(hidden, model.output.weight, batch.target_out[real], bias=model.output.bias)
    return loss


def choose_heads(importance: Importance, share: float) -> Heads:
    """Return the heads that stay if this share of all, the least important ones, is removed. Each attention keeps one."""
    heads = sorted(
        (float(value), kind, layer, head) for kind, of_layers in importance.items()
        for layer, values in enumerate(of_layers) for head, value in enumerate(values))
    kept = {kind: [list(range(len(values))) for values in of_layers] for kind, of_layers in importance.items()}
    remaining = round(share * len(heads))
    for _, kind, layer, head in heads:
        if remaining and len(kept[kind][layer]) > 1:
            kept[kind][layer].remove(head)
            remaining -= 1
    if remaining:
        most = 1 - sum(map(len, importance.values())) / len(heads)
        raise UserError(f"heads={share:g}: each attention keeps a head, so at most {most:.2f} of them can be removed.")
    return kept
