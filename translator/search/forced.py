"""Forced decoding: what models make of outputs that are given."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from translator.data.batching import collate
from translator.model.attention import padding_mask
from translator.search.hypothesis import Ids
from translator.text.tokenizer import PAD_ID

# Tokens whose probabilities are worked out at once: half a gigabyte where the vocabulary has 128,000 pieces.
ROWS_AT_ONCE = 1024


class Decoder(Protocol):
    """What is asked of a model; `translator.model.transformer.Transformer` says what each does."""

    @property
    def alignment_layers(self) -> Collection[int]: ...

    def encode(self, source: Tensor) -> Tensor: ...
    def decode(
        self, target: Tensor, memory: Tensor, mask: Tensor | None, *, weights_of: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor]]: ...
    def log_probabilities(self, decoded: Tensor, some: slice) -> Tensor: ...


@dataclass(frozen=True)
class Rating:
    """An output, token by token, EOS last."""

    log_probabilities: tuple[float, ...]
    attention: Tensor  # (tokens, source tokens), from each token to the source: the mean of `alignment_layers` and their heads

    @property
    def log_probability(self) -> float:
        return math.fsum(self.log_probabilities)


def _log_probabilities(model: Decoder, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Of each of tokens (B, T) after hidden (B, T, D); the whole vocabulary's are worked out for some at a time."""
    rows, chosen = hidden.flatten(0, 1), tokens.flatten()[:, None]
    some = [slice(first, first + ROWS_AT_ONCE) for first in range(0, len(rows), ROWS_AT_ONCE)]
    return torch.cat([model.log_probabilities(rows, each).gather(1, chosen[each]) for each in some]).view_as(tokens)


@torch.inference_mode()
def rate(
    models: Sequence[Decoder], sources: Sequence[Ids], outputs: Sequence[Ids], device: torch.device
) -> list[Rating]:
    """Rate `outputs` as translations of `sources`, all of which end in EOS, in one pass; models together as an ensemble."""
    batch = collate(sources, outputs).to(device)
    mask = padding_mask(batch.source, PAD_ID)
    probabilities, attention = [], []
    for model in models:
        hidden, weights = model.decode(
            batch.target_in, model.encode(batch.source), mask, weights_of=model.alignment_layers)
        probabilities.append(_log_probabilities(model, hidden, batch.target_out))
        attention.append(torch.stack(weights).float().mean(dim=(0, 2)))  # over layers and heads
    log_probabilities = torch.stack(probabilities).logsumexp(dim=0) - math.log(len(models))  # (B, T)
    together = torch.stack(attention).mean(dim=0)  # (B, T, S)
    return [
        Rating(tuple(log_probabilities[i, : len(output)].tolist()), together[i, : len(output), : len(source)].cpu())
        for i, (source, output) in enumerate(zip(sources, outputs, strict=True))]
