"""Which continuations of a step's hypotheses live on.

Shapes: B sentences, K hypotheses each, N of the B x K, C candidates for the next token, V target vocabulary. A hypothesis of
log-probability -inf is not open: it only keeps the shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from translator.config.options import SearchConfig
from translator.text.tokenizer import EOS_ID, PAD_ID

# Numbers whose largest is found first, on the way to the largest of all...
CHUNK = 64
# ... where there are more than so many numbers: for fewer, the calls cost more than they spare.
CHUNKED_FROM = 1 << 17


class Candidates(NamedTuple):
    """Tokens that may come next, among which are all that can be chosen, and their log-probabilities: each (..., C)."""

    log_probabilities: Tensor
    tokens: Tensor


class Continuations(NamedTuple):
    """The hypotheses of the next step, each (B, K')."""

    totals: Tensor  # log-probabilities
    parents: Tensor | None  # which hypothesis each continues; None: the one in its place
    tokens: Tensor


def most_continuations(config: SearchConfig) -> int:
    """The most that a step leaves of a sentence: one a place, and where places stay twice as many, as some may end."""
    return config.beam_size * (2 if config.places_stay else 1)


def best_candidates(log_probabilities: Tensor, config: SearchConfig) -> Candidates:
    """The likeliest of each hypothesis's next tokens, log_probabilities (N, V): (N, C), as many as there are continuations.

    That is enough for groups too: those before hold no more tokens against one than they chose.
    """
    return Candidates(*top_k(log_probabilities, min(most_continuations(config), log_probabilities.size(-1))))


def best_continuations(scores: Tensor, candidates: Candidates, places: Tensor, config: SearchConfig) -> Continuations:
    """The most probable continuations, one for each place that no finished hypothesis has taken.

    Where places stay, none but the first `beam_size` may end.

    scores (B, K), candidates (B, K, C), places (B, G), where G groups of hypotheses search side by side. With more than
    one, each holds what the groups before it have chosen in this step against a token, `diversity` for each time: diverse beam
    search, Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424, section 4.1, with Hamming diversity.
    """
    if candidates.tokens[0].numel() == 1:  # no choice
        return Continuations(scores + candidates.log_probabilities[:, :, 0], None, candidates.tokens[:, :, 0])
    groups = places.size(1)
    width, size = scores.size(1) // groups, most_continuations(config) // groups
    chosen: list[Continuations] = []
    for group in range(groups):
        members = slice(group * width, (group + 1) * width)
        values, tokens = candidates.log_probabilities[:, members], candidates.tokens[:, members]
        ranked = values
        if chosen:
            earlier = torch.cat([c.tokens.masked_fill(c.totals == -torch.inf, PAD_ID) for c in chosen], dim=1)
            ranked = values - config.diversity * (tokens[..., None] == earlier[:, None, None]).sum(dim=-1)
        start = scores[:, members, None]
        ranking, index = (start + ranked).flatten(1).topk(min(size, ranked[0].numel()))
        continued = tokens.flatten(1).gather(1, index)
        taken = torch.arange(ranking.size(1), device=scores.device) >= places[:, group, None]
        if config.places_stay:
            taken &= continued == EOS_ID
        totals = ranking if ranked is values else (start + values).flatten(1).gather(1, index)
        chosen.append(Continuations(totals.masked_fill(taken, -torch.inf), group * width + index // ranked.size(2), continued))
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

    def draw(self, log_probabilities: Tensor, sentences: Tensor, step: int) -> Candidates:
        """One next token for each of N hypotheses, log_probabilities (N, V), of these sentences, (N,): (N, 1)."""
        tempered = (log_probabilities / self.config.temperature).softmax(dim=-1)
        tokens = torch.arange(tempered.size(1), device=tempered.device).expand_as(tempered)
        if self.config.top_k or self.config.top_p < 1:
            tempered, tokens = tempered.topk(min(self.config.top_k or tempered.size(1), tempered.size(1)))
        mass = tempered.cumsum(dim=-1)
        if self.config.top_p < 1:  # the smallest set of the likeliest tokens that holds so much (Holtzman et al. 2020)
            beyond = mass - tempered >= self.config.top_p * mass[:, -1:]
            beyond[:, 0] = False  # the likeliest stays, also where float32 holds top_p as 0
            tempered = tempered.masked_fill(beyond, 0)
            mass = tempered.cumsum(dim=-1)
        # Above zero, and no more than all mass, so that the token at which it is reached has some.
        drawn = (self.draws[sentences, step, None] * mass[:, -1:]).clamp(min=torch.finfo(mass.dtype).tiny)
        index = (mass < drawn).sum(dim=-1, keepdim=True)
        chosen = tokens.gather(1, index)
        return Candidates(log_probabilities.gather(1, chosen), chosen)


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each of N rows (N, V) and where they stand, largest first, as `Tensor.topk`.

    On a CPU that copies every number with its index. Here the largest of each chunk come first: the k largest numbers stand in
    the k chunks whose largest are the largest. Models bring vocabularies that are whole chunks (`evened`).
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
