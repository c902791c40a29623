"""Which continuations of a step's hypotheses live on (floor 3).

Shapes: B sentences, K hypotheses each, V target vocabulary. A hypothesis of log-probability -inf is not open: it only keeps
the shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from translator.config import SearchConfig
from translator.tokenizer import EOS_ID, PAD_ID

# Numbers whose largest is found first, on the way to the largest of all.
CHUNK = 64


class Continuations(NamedTuple):
    """The hypotheses of the next step, each (B, K')."""

    totals: Tensor  # log-probabilities
    parents: Tensor  # which hypothesis each continues
    tokens: Tensor


def best_continuations(
    scores: Tensor, log_probabilities: Tensor, places: Tensor, config: SearchConfig
) -> Continuations:
    """The most probable continuations, one for each place that no finished hypothesis has taken.

    Where places stay there are twice as many, as those that end leave their places to others; none but the first `beam_size`
    may end.

    scores (B, K), log_probabilities (B, K, V), places (B, G), where G groups of hypotheses search side by side. With more than
    one, each holds what the groups before it have chosen in this step against a token, `diversity` for each time: diverse beam
    search, Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424, section 4.1, with Hamming diversity.
    """
    groups = places.size(1)
    width, size = scores.size(1) // groups, config.beam_size // groups * (2 if config.places_stay else 1)
    chosen: list[Continuations] = []
    for group in range(groups):
        members = slice(group * width, (group + 1) * width)
        rows = log_probabilities[:, members]
        if chosen:
            earlier = torch.cat([c.tokens.masked_fill(c.totals == -torch.inf, 0) for c in chosen], dim=1)  # 0 is padding
            ones = torch.full(earlier.shape, config.diversity, device=rows.device, dtype=rows.dtype)
            held_against = torch.zeros_like(rows[:, 0]).scatter_add(1, earlier, ones)
            ranked, tokens = top_k(rows - held_against[:, None], min(size, rows.size(2)))
            values = rows.gather(2, tokens)
        else:
            values, tokens = top_k(rows, min(size, rows.size(2)))
            ranked = values
        start = scores[:, members, None]
        ranking, index = (start + ranked).flatten(1).topk(min(size, ranked[0].numel()))
        continued = tokens.flatten(1).gather(1, index)
        taken = torch.arange(ranking.size(1), device=scores.device) >= places[:, group, None]
        if config.places_stay:
            taken &= continued == EOS_ID
        totals = (start + values).flatten(1).gather(1, index).masked_fill(taken, -torch.inf)
        chosen.append(Continuations(totals, group * width + index // ranked.size(2), continued))
    return Continuations(*(torch.cat(parts, dim=1) for parts in zip(*chosen, strict=True))) if groups > 1 else chosen[0]


class Sampling:
    """Every hypothesis draws its own next token: ancestral sampling.

    Which numbers are drawn follows from the seed, the source sentence and its copy alone: neighbours change nothing.
    """

    def __init__(self, source: Tensor, copies: int, longest: int, config: SearchConfig) -> None:
        """source (B, S) holds every sentence so many times in a row; longest: most tokens of an output."""
        self.config = config
        draws = []
        for row, ids in enumerate(source.tolist()):
            sentence = (i for i in ids if i != PAD_ID)
            seed = hash((config.seed, row % copies, *sentence)) % 2**63  # whole numbers hash alike in every process
            draws.append(torch.rand(longest + 1, generator=torch.Generator().manual_seed(seed)))
        self.draws = torch.stack(draws).to(source.device)  # (B, steps), each in [0, 1)

    def continuations(self, scores: Tensor, log_probabilities: Tensor, sentences: Tensor, step: int) -> Continuations:
        """One continuation for the one hypothesis of each sentence: scores (B, 1), log_probabilities (B, 1, V)."""
        tempered = (log_probabilities / self.config.temperature).softmax(dim=-1)
        tokens = torch.arange(tempered.size(2), device=scores.device).expand_as(tempered)
        if self.config.top_k or self.config.top_p < 1:
            tempered, tokens = tempered.topk(min(self.config.top_k or tempered.size(2), tempered.size(2)))
        mass = tempered.cumsum(dim=-1)
        if self.config.top_p < 1:  # the smallest set of the likeliest tokens that holds so much (Holtzman et al. 2020)
            tempered = tempered.masked_fill(mass - tempered >= self.config.top_p * mass[..., -1:], 0)
            mass = tempered.cumsum(dim=-1)
        drawn = self.draws[sentences, step, None, None] * mass[..., -1:]
        index = (mass <= drawn).sum(dim=-1, keepdim=True).clamp(max=mass.size(2) - 1)
        chosen = tokens.gather(2, index)
        totals = scores + log_probabilities.gather(2, chosen).squeeze(2)
        parents = torch.arange(scores.size(1), device=scores.device).expand_as(scores)
        return Continuations(totals, parents, chosen.squeeze(2))


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of the last dimension and where they stand, largest first, as `Tensor.topk`.

    On a CPU that copies every number with its index. Here the largest of each chunk come first: the k largest numbers stand in
    the k chunks whose largest are the largest.
    """
    size = values.size(-1)
    whole = size - size % CHUNK
    if values.device.type != "cpu" or whole // CHUNK < 2 * k:
        best, index = values.topk(k)
        return best, index
    chunks = values[..., :whole].unflatten(-1, (-1, CHUNK))
    promising = chunks.amax(dim=-1).topk(k).indices  # (..., k)
    candidates = chunks.gather(-2, promising[..., None].expand(*promising.shape, CHUNK)).flatten(-2)
    best, at = torch.cat([candidates, values[..., whole:]], dim=-1).topk(k)
    in_chunk = promising.gather(-1, (at // CHUNK).clamp(max=k - 1)) * CHUNK + at % CHUNK
    return best, torch.where(at < k * CHUNK, in_chunk, at - k * CHUNK + whole)
