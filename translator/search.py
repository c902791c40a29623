"""Greedy and beam search over one stepping protocol: encode, start, decode_step, reorder, select (floor 4).

Shapes: B sentences still searched, K hypotheses each, T tokens so far, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from translator.config import SearchConfig
from translator.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# Never produced: markers of training, and the mark of an unknown piece, which says nothing to a reader.
NEVER = (PAD_ID, UNK_ID, BOS_ID)


class Model(Protocol):
    """What search asks of a model; `translator.model.Transformer` says what each does."""

    def encode(self, source: Tensor) -> Tensor: ...
    def start(self, memory: Tensor, mask: Tensor) -> Any: ...
    def decode_step(self, tokens: Tensor, state: Any) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished output."""

    ids: tuple[int, ...]  # without BOS and EOS
    log_probability: float  # of all its tokens, EOS among them
    score: float  # log_probability / length_penalty(tokens, EOS among them)
    hit_limit: bool  # as long as is allowed: it could but end


def length_penalty(length: Tensor | int, alpha: float) -> Any:
    """((5 + length) / 6) ^ alpha: Wu et al. 2016, https://arxiv.org/abs/1609.08144, section 7. Length counts EOS."""
    return ((5 + length) / 6) ** alpha


def max_lengths(source: Tensor, config: SearchConfig) -> Tensor:
    """The most tokens before EOS for each sentence of source (B, S), from its own length: (B,)."""
    relative = ((source != PAD_ID).sum(dim=1) * config.max_length_ratio).long() + config.max_length_extra
    return relative if config.max_length is None else relative.clamp(max=config.max_length)


@torch.inference_mode()
def search(model: Model, source: Tensor, config: SearchConfig) -> list[list[Hypothesis]]:
    """The `config.n_best` best hypotheses for each sentence of source (B, S), best first.

    A sentence has `beam_size` places. At each step the most probable continuations of its open hypotheses fill the places
    that finished ones have not taken, by total log-probability; those that end in EOS finish. At its longest length a
    hypothesis can but end. So with one place this is greedy search.

    A sentence is done when no place is open, or when no open hypothesis can still be among the n best. That is exact:
    log-probabilities add numbers that are never positive, so whatever an open hypothesis of log-probability p <= 0 becomes, its
    score is p' / penalty(length) with p' <= p and length <= the longest allowed. As the penalty never falls with length,
    the score is at most p / penalty(longest), and that is compared with the n-th best finished score.
    """
    mask = source != PAD_ID
    beams = _Beams(model.start(model.encode(source), mask), max_lengths(source, config), config)
    while len(beams.sentences):
        beams.step(model)
    return [sorted(found, key=lambda h: -h.score)[: config.n_best] for found in beams.finished]


@dataclass
class _Beams:
    """The open hypotheses of the sentences still searched, and what has finished."""

    state: Any
    longest: Tensor  # (B,) most tokens before EOS
    config: SearchConfig
    sentences: Tensor = field(init=False)  # (B,) which sentences these are
    tokens: Tensor = field(init=False)  # (B, K, 1 + T), BOS first
    scores: Tensor = field(init=False)  # (B, K) log-probabilities, -inf where a place is not open
    places: Tensor = field(init=False)  # (B,) places that finished hypotheses have not taken
    finished: list[list[Hypothesis]] = field(init=False)  # by sentence
    to_beat: Tensor = field(init=False)  # (B,) score of the n-th best finished one, -inf before there are n

    def __post_init__(self) -> None:
        count, device = len(self.longest), self.longest.device
        self.sentences = torch.arange(count, device=device)
        self.tokens = torch.full((count, 1, 1), BOS_ID, device=device)
        self.scores = torch.zeros(count, 1, device=device)
        self.places = torch.full((count,), self.config.beam_size, device=device)
        self.finished = [[] for _ in range(count)]
        self.to_beat = torch.full((count,), -torch.inf, device=device)

    def step(self, model: Model) -> None:
        """Extend every open hypothesis by a token."""
        totals, parents, tokens = self._best_continuations(model)
        ends = (tokens == EOS_ID) & totals.isfinite()
        self._finish(ends, totals, parents)
        self.places = self.places - ends.sum(dim=1)
        self._go_on(totals.masked_fill(ends, -torch.inf), parents, tokens)
        self._drop_done()

    def _best_continuations(self, model: Model) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations, one a place: log-probability, -inf where a place is taken, parent and token, each (B, K')."""
        log_probabilities = model.decode_step(self.tokens[:, :, -1], self.state).float().log_softmax(dim=-1)  # (B, K, V)
        self._forbid(log_probabilities)
        totals = self.scores[:, :, None] + log_probabilities
        best, index = totals.flatten(1).topk(min(self.config.beam_size, totals[0].numel()))
        taken = torch.arange(best.size(1), device=best.device) >= self.places[:, None]
        return best.masked_fill(taken, -torch.inf), index // totals.size(-1), index % totals.size(-1)

    def _forbid(self, log_probabilities: Tensor) -> None:
        """Rule out, in place, the tokens that must not come next: (B, K, V)."""
        length = self.tokens.size(2) - 1
        at_limit = (self.longest <= length)[:, None]  # (B, 1)
        ending = log_probabilities[:, :, EOS_ID].clone()
        if length < self.config.min_length:
            ending.masked_fill_(~at_limit, -torch.inf)
        log_probabilities.masked_fill_(at_limit[:, :, None], -torch.inf)
        log_probabilities[:, :, EOS_ID] = ending
        for token in NEVER:
            log_probabilities[:, :, token] = -torch.inf

    def _finish(self, ends: Tensor, totals: Tensor, parents: Tensor) -> None:
        """Put away the hypotheses that end here: `ends` (B, K')."""
        length = self.tokens.size(2)  # EOS in the place of BOS
        at = ends.nonzero()
        if not len(at):
            return
        rows, columns = at.unbind(dim=1)
        ids = self.tokens[rows, parents[rows, columns], 1:].tolist()
        penalty = length_penalty(length, self.config.length_penalty)
        limits = (self.longest[rows] <= length - 1).tolist()
        for row, sentence, sequence, total, hit_limit in zip(
                rows.tolist(), self.sentences[rows].tolist(), ids, totals[rows, columns].tolist(), limits, strict=True):
            found = self.finished[sentence]
            found.append(Hypothesis(tuple(sequence), total, total / penalty, hit_limit))
            if len(found) >= self.config.n_best:
                self.to_beat[row] = sorted((h.score for h in found), reverse=True)[self.config.n_best - 1]

    def _go_on(self, totals: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Take the continuations as hypotheses; those of log-probability -inf are not open and only keep the shape."""
        self.scores = totals
        history = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.size(2)))
        self.tokens = torch.cat([history, tokens[:, :, None]], dim=2)
        self.state.reorder(parents)

    def _drop_done(self) -> None:
        """Take the sentences out of which nothing better can come."""
        best_open = self.scores.amax(dim=1)
        bound = best_open / length_penalty(self.longest + 1, self.config.length_penalty)
        open_still = (best_open > -torch.inf) & (bound > self.to_beat)
        keep = open_still.nonzero().flatten()
        if len(keep) == len(self.sentences):
            return
        self.state.select(keep)
        for name in ("sentences", "tokens", "scores", "places", "to_beat", "longest"):
            setattr(self, name, getattr(self, name)[keep])
