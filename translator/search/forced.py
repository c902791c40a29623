"""Forced decoding: the probabilities and attention that models give to known outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translator.data.batching import collate
from translator.model.attention import padding_mask
from translator.model.transformer import Transformer
from translator.search.hypothesis import Ids
from translator.text.tokenizer import PAD_ID

# Tokens whose probabilities are computed together: half a gigabyte where the vocabulary has 128,000 pieces.
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Rating:
    """An output token by token, EOS last."""

    log_probabilities: tuple[float, ...]
    attention: Tensor  # (tokens, source tokens), from each token to the source: the mean of `alignment_layers` and their heads

    @property
    def log_probability(self) -> float:
        return math.fsum(self.log_probabilities)


@torch.inference_mode()
def rate(models: Sequence[Transformer], sources: Sequence[Ids], outputs: Sequence[Ids], device: torch.device) -> list[Rating]:
    """Rate `outputs` as translations of `sources`, all with EOS, in one pass; several models as an ensemble."""
    batch = collate(sources, outputs).to(device)
    mask = padding_mask(batch.source, PAD_ID)
    probabilities, attention = [], []
    for model in models:
        hidden, weights = model.decode(batch.target_in, model.encode(batch.source), mask, weights_of=model.alignment_layers)
        probabilities.append(_log_probabilities(model, hidden, batch.target_out))
        attention.append(torch.stack(weights).float().mean(dim=(0, 2)))  # over layers and heads
    log_probabilities = torch.stack(probabilities).logsumexp(dim=0) - math.log(len(models))  # (B, T)
    mean_attention = torch.stack(attention).mean(dim=0)  # (B, T, S)
    return [
        Rating(tuple(log_probabilities[i, : len(output)].tolist()), mean_attention[i, : len(output), : len(source)].cpu())
        for i, (source, output) in enumerate(zip(sources, outputs, strict=True))]


def _log_probabilities(model: Transformer, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Return those of tokens (B, T) after hidden (B, T, D), with the whole vocabulary's for only some rows at a time."""
    rows, chosen = hidden.flatten(0, 1), tokens.flatten()[:, None]
    slices = [slice(first, first + ROWS_AT_ONCE) for first in range(0, len(rows), ROWS_AT_ONCE)]
    return torch.cat([model.log_probabilities(rows, some).gather(1, chosen[some]) for some in slices]).view_as(tokens)
