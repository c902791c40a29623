"""Choose which continuations of a step's hypotheses survive.

Shapes: B sentences, K hypotheses each, N of the B x K, C candidates for the next token, V target vocabulary. A hypothesis of
log-probability -inf is not open: it only fills the shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from translator.config.options import SearchOptions
from translator.search.hypothesis import width_of
from translator.text.tokenizer import EOS_ID, PAD_ID

# `top_k` on a CPU: numbers a chunk, and the size from which chunks pay: 4 % of beam search with 12,000 pieces.
CHUNK, CHUNKED_FROM = 64, 1 << 17


class Candidates(NamedTuple):
    """Tokens that may come next, and their log-probabilities: each (..., C)."""

    log_probabilities: Tensor
    tokens: Tensor


class Continuations(NamedTuple):
    """The hypotheses of the next step, each (B, K')."""

    totals: Tensor  # log-probabilities
    parents: Tensor | None  # which hypothesis each continues; None: the one in its place
    tokens: Tensor


def most_continuations(options: SearchOptions) -> int:
    """Return how many continuations of a sentence survive: one a place, twice as many where places stay, as some may end."""
    return width_of(options) * (2 if options.places_stay else 1)


def best_continuations(scores: Tensor, candidates: Candidates, places: Tensor, options: SearchOptions) -> Continuations:
    """Return the most probable continuations, one for each place that no finished hypothesis has taken.

    Where places stay, only the first `width` may end.

    scores (B, K), candidates (B, K, C), places (B, G), where G groups of hypotheses search side by side. Each group
    penalises a token by `diversity` for each time that an earlier group chose it in this step: diverse beam search,
    Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424, section 4.1, with Hamming diversity.
    """
    if candidates.tokens[0].numel() == 1:  # no choice
        return Continuations(scores + candidates.log_probabilities[:, :, 0], None, candidates.tokens[:, :, 0])
    groups = places.size(1)
    width, size = scores.size(1) // groups, most_continuations(options) // groups
    chosen: list[Continuations] = []
    for group in range(groups):
        members = slice(group * width, (group + 1) * width)
        values, tokens = candidates.log_probabilities[:, members], candidates.tokens[:, members]
        ranked = values
        if chosen:
            earlier = torch.cat([c.tokens.masked_fill(c.totals == -torch.inf, PAD_ID) for c in chosen], dim=1)
            ranked = values - options.diversity * (tokens[..., None] == earlier[:, None, None]).sum(dim=-1)
        start = scores[:, members, None]
        ranking, index = (start + ranked).flatten(1).topk(min(size, ranked[0].numel()))
        continued = tokens.flatten(1).gather(1, index)
        taken = torch.arange(ranking.size(1), device=scores.device) >= places[:, group, None]
        if options.places_stay:
            taken &= continued == EOS_ID
        totals = ranking if ranked is values else (start + values).flatten(1).gather(1, index)
        chosen.append(Continuations(totals.masked_fill(taken, -torch.inf), group * width + index // ranked.size(2), continued))
    return Continuations(*(torch.cat(parts, dim=1) for parts in zip(*chosen, strict=True))) if groups > 1 else chosen[0]


class Sampling:
    """Ancestral sampling: every hypothesis draws its own next token.

    The random numbers depend only on the seed, the source sentence and the number of the sample, not on other sentences.
    """

    def __init__(self, source: Tensor, longest: int, options: SearchOptions) -> None:
        """source (B, S) holds every sentence `beam_size` times in a row; longest: most tokens of an output."""
        self.options = options
        draws = []
        for row, ids in enumerate(source.tolist()):
            sentence = (i for i in ids if i != PAD_ID)
            # Integers have the same hash in every process.
            seed = hash((options.seed, row % options.beam_size, *sentence)) % 2**63
            draws.append(torch.rand(longest + 1, generator=torch.Generator().manual_seed(seed)))
        self.draws = torch.stack(draws).to(source.device)  # (B, steps), each in [0, 1)

    def draw(self, log_probabilities: Tensor, sentences: Tensor, step: int) -> Candidates:
        """Draw one next token for each of N hypotheses, log_probabilities (N, V), of these sentences, (N,): (N, 1)."""
        options = self.options
        probabilities = (log_probabilities / options.temperature).softmax(dim=-1)
        tokens = torch.arange(probabilities.size(1), device=probabilities.device).expand_as(probabilities)
        if options.top_k or options.top_p < 1:
            probabilities, tokens = probabilities.topk(min(options.top_k or probabilities.size(1), probabilities.size(1)))
        mass = probabilities.cumsum(dim=-1)
        if options.top_p < 1:  # nucleus sampling (Holtzman et al. 2020)
            beyond = mass - probabilities >= options.top_p * mass[:, -1:]
            beyond[:, 0] = False  # keep the likeliest even where float32 rounds top_p to 0
            probabilities = probabilities.masked_fill(beyond, 0)
            mass = probabilities.cumsum(dim=-1)
        # Above zero and at most the total mass, so that the token at which it is reached has some.
        drawn = (self.draws[sentences, step, None] * mass[:, -1:]).clamp(min=torch.finfo(mass.dtype).tiny)
        index = (mass < drawn).sum(dim=-1, keepdim=True)
        chosen = tokens.gather(1, index)
        return Candidates(log_probabilities.gather(1, chosen), chosen)


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row of (N, V) and their indices, largest first, as `Tensor.topk` does.

    On a CPU `topk` copies every number with its index. Taking the largest of each chunk first avoids that: the k largest
    numbers are in the k chunks with the largest maxima. Models pad vocabularies to whole chunks (`pad_outputs`).
    """
    rows, size = values.shape
    per_row = size // CHUNK
    if values.device.type != "cpu" or values.numel() < CHUNKED_FROM or size % CHUNK or per_row < 2 * k:
        best, index = values.topk(k) if k > 1 else values.max(dim=-1, keepdim=True)
        return best, index
    chunks = values.view(-1, CHUNK)
    promising = chunks.amax(dim=-1).view(rows, per_row).topk(k).indices  # (N, k)
    first = torch.arange(0, rows * per_row, per_row)[:, None]
    candidates = chunks.index_select(0, (first + promising).flatten()).view(rows, -1)
    best, at = candidates.topk(k)
    return best, promising.gather(1, at // CHUNK) * CHUNK + at % CHUNK
