"""How outputs are scored: log-probability / length penalty + coverage penalty. Forced decoding scores known outputs.

A new length penalty takes an entry in `LENGTH_PENALTIES` and its name in `SearchConfig.length_penalty_form`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translator.data.batching import collate
from translator.data.lexicon import Lexicon
from translator.model.attention import padding_mask
from translator.model.transformer import Transformer
from translator.search.hypothesis import Ids
from translator.text.tokenizer import PAD_ID

# Tokens whose probabilities are computed together: half a gigabyte where the vocabulary has 128,000 pieces.
ROWS_AT_ONCE = 1024
# A penalty must never fall with length (a number or a tensor, EOS counted): the search stops by that.
LENGTH_PENALTIES: dict[str, Callable[[Any, float], Any]] = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,  # Wu et al. 2016, https://arxiv.org/abs/1609.08144, section 7
    "power": lambda length, alpha: length**alpha}  # with alpha 1 the score is the average log-probability of a token


def length_penalty(length: Tensor | int, form: str, alpha: float) -> Any:
    """Return what a log-probability is divided by; length counts EOS."""
    return LENGTH_PENALTIES[form](length, float(alpha))


def coverage_penalty(coverage: Tensor, source: Tensor, beta: float) -> Tensor:
    """Return beta x the sum over source tokens of log(min(attention received, 1)) (Wu et al. 2016, section 7).

    coverage (B, K, S), source (B, S) -> (B, K). At most zero, which means that every source token received its share.
    """
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return beta * logs.masked_fill((source == PAD_ID)[:, None], 0).sum(dim=2)


@dataclass(frozen=True)
class Rating:
    """An output token by token, EOS last."""

    log_probabilities: tuple[float, ...]
    attention: Tensor  # (tokens, source tokens), from each token to the source: the mean of the model's `alignment_heads`
    alignment: Tensor  # (tokens, source tokens), evidence that a source token is what a token translates; zeros: none

    @property
    def log_probability(self) -> float:
        return math.fsum(self.log_probabilities)


@torch.inference_mode()
def rate(models: Sequence[Transformer], sources: Sequence[Ids], outputs: Sequence[Ids], device: torch.device,
         lexicon: Lexicon | None = None) -> list[Rating]:
    """Rate `outputs` as translations of `sources`, all with EOS, in one pass; several models as an ensemble.

    lexicon: on the CPU; alignment is then attention and lexical probability together.
    """
    batch = collate(sources, outputs).to(device)
    mask = padding_mask(batch.source, PAD_ID)
    probabilities, attention, alignment = [], [], []
    for model in models:
        heads = model.alignment_heads
        hidden, weights = model.decode(batch.target_in, model.encode(batch.source), mask, weights_of=heads.layers)
        probabilities.append(_log_probabilities(model, hidden, batch.target_out))
        attention.append(heads.mean(weights))
        alignment.append(heads.aligned(attention[-1]))
    log_probabilities = torch.stack(probabilities).logsumexp(dim=0) - math.log(len(models))  # (B, T)
    mean_attention, evidence = (torch.stack(of_models).mean(dim=0).cpu() for of_models in (attention, alignment))  # (B, T, S)
    ratings = []
    for i, (source, output) in enumerate(zip(sources, outputs, strict=True)):
        links = evidence[i, : len(output), : len(source)]
        if lexicon is not None:  # one by one: at once it would take more memory than the model
            [links] = lexicon.support(links[None], torch.tensor([source]), torch.tensor([output]))
        ratings.append(Rating(
            tuple(log_probabilities[i, : len(output)].tolist()), mean_attention[i, : len(output), : len(source)], links))
    return ratings


def _log_probabilities(model: Transformer, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of tokens (B, T) after hidden (B, T, D); the whole vocabulary's for some rows at a time."""
    rows, chosen = hidden.flatten(0, 1), tokens.flatten()[:, None]
    slices = [slice(first, first + ROWS_AT_ONCE) for first in range(0, len(rows), ROWS_AT_ONCE)]
    return torch.cat([model.log_probabilities(rows, some).gather(1, chosen[some]) for some in slices]).view_as(tokens)


@torch.inference_mode()
def predictions(
    models: Sequence[Transformer], sources: Sequence[Ids], outputs: Sequence[Ids], device: torch.device, count: int = 1
) -> list[tuple[Tensor, Tensor]]:
    """Return the `count` likeliest tokens at each place of each output, given the output's tokens before it.

    sources and outputs: with EOS. Returns tokens and probabilities (T, count), likeliest first; several models predict as an
    ensemble.
    """
    batch = collate(sources, outputs).to(device)
    mask, real = padding_mask(batch.source, PAD_ID), batch.target_out != PAD_ID
    hidden = [model.decode(batch.target_in, model.encode(batch.source), mask)[0][real] for model in models]  # (N, D)
    likeliest = []
    for first in range(0, len(hidden[0]), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        of_models = [model.log_probabilities(of_model, rows) for model, of_model in zip(models, hidden, strict=True)]
        mean = torch.stack(of_models).exp().mean(dim=0)
        likeliest.append(mean.topk(min(count, mean.size(1)), dim=1))
    probabilities, tokens = (torch.cat(parts).cpu() for parts in zip(*likeliest, strict=True))
    lengths = list(map(len, outputs))
    return list(zip(tokens.split(lengths), probabilities.split(lengths), strict=True))
