"""The stepping engine of every search.

Shapes: B sentences still searched, K hypotheses each; N in all are open, N' of them processed together; T tokens so
far, V target vocabulary and its padding, of probability 0; M finished outputs kept of each sentence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from translator.config.options import SearchOptions
from translator.data.batching import pad
from translator.model.active_hypotheses import ActiveHypotheses
from translator.search.choice import Candidates, Sampling, best_continuations, most_continuations, top_k
from translator.search.hypothesis import Demands, Hypothesis, length_limits, width_of
from translator.search.phrases import RequiredPhrases, holds, with_wanted
from translator.search.rules import BannedPhrases, build_rules
from translator.search.scoring import coverage_penalty, length_penalty
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# Never produced: markers of training, and the unknown piece unless it is to be copied.
NEVER = (PAD_ID, UNK_ID, BOS_ID)
# Steps between two checks for finished sentences. Each check synchronises a GPU. A CPU checks at every step, and so does a
# search for a single sentence, for which a GPU has to wait anyway (docs/speed.md).
LOOK_EVERY = 8
# Probabilities computed together on a CPU: more do not fit its cache, fewer make matmuls less efficient.
AT_ONCE = 1 << 21


class Model(Protocol):
    """The methods of `translator.model.transformer.Transformer` that a search calls."""

    def encode(self, source: Tensor) -> Any: ...
    def start(self, memory: Any, mask: Tensor, *, follow_coverage: bool = False) -> Any: ...
    def decode_step(self, tokens: Tensor, state: Any, rows: ActiveHypotheses) -> Any: ...
    def log_probabilities(self, decoded: Any, some: slice) -> Tensor: ...  # may be overwritten


def as_one(models: Sequence[Model]) -> Model:
    """Return a single model unchanged, several as an ensemble."""
    return models[0] if len(models) == 1 else Ensemble(models)


class Ensemble:
    """Models of the same vocabularies. The probability of a token is the mean of theirs."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = models

    def encode(self, source: Tensor) -> list[Any]:
        return [model.encode(source) for model in self.models]

    def start(self, memory: list[Any], mask: Tensor, *, follow_coverage: bool = False) -> States:
        return States([
            model.start(own, mask, follow_coverage=follow_coverage)
            for model, own in zip(self.models, memory, strict=True)])

    def decode_step(self, tokens: Tensor, state: States, rows: ActiveHypotheses) -> list[Any]:
        return [model.decode_step(tokens, own, rows) for model, own in zip(self.models, state.states, strict=True)]

    def log_probabilities(self, decoded: list[Any], some: slice) -> Tensor:
        each = [model.log_probabilities(own, some) for model, own in zip(self.models, decoded, strict=True)]
        return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


class States:
    """The states of all models, which see the same hypotheses."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states

    @property
    def coverage(self) -> Tensor:
        return torch.stack([state.coverage for state in self.states]).mean(dim=0)

    def reorder(self, parents: Tensor) -> None:
        for state in self.states:
            state.reorder(parents)

    def select(self, sentences: Tensor) -> None:
        for state in self.states:
            state.select(sentences)


@torch.inference_mode()
def search(model: Model, source: Tensor, options: SearchOptions, demands: Demands | None = None) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses for each sentence of source (B, S), best first; different ones, unless sampled.

    A sentence has `width_of(options)` places. At each step the most probable continuations of its open hypotheses fill the
    places that finished ones have not taken, by total log-probability; any that end in EOS finish. At its longest length a
    hypothesis must end. So with one place this is greedy search. In sampling each of several copies of a sentence draws
    for itself. With `places_stay` no place is ever taken; a sentence is also done when `awaited` hypotheses have finished
    (patience, Kasai et al. 2022, https://arxiv.org/abs/2204.05424).

    A sentence is done when no place is open, or when no open hypothesis can still be among the n best. That is exact:
    log-probabilities add numbers that are never positive, so an open hypothesis of log-probability p <= 0 ends with the
    score p' / penalty(length) + coverage with p' <= p, length <= the longest allowed and coverage <= 0. As the penalty never
    falls with length, the score is at most p / penalty(longest), and that is compared with the n-th best finished score.
    """
    demands, copies = demands or Demands(), options.beam_size if options.sampling else 1
    if copies > 1:
        source = source.repeat_interleave(copies, dim=0)
        prefixes = demands.prefixes and [prefix for prefix in demands.prefixes for _ in range(copies)]
        demands = replace(demands, prefixes=prefixes)
    beams = _Beams(model, source, options, demands)
    while len(beams.sentences):
        beams.step()
    outputs = [
        sorted(itertools.chain.from_iterable(beams.found[first : first + copies]), key=lambda h: -h.score)
        for first in range(0, len(beams.found), copies)]
    return [(found if options.sampling else _distinct(found))[: options.n_best] for found in outputs]


def _distinct(found: list[Hypothesis]) -> list[Hypothesis]:
    """Drop outputs that two groups have found."""
    best: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in found:
        best.setdefault(hypothesis.ids, hypothesis)
    return list(best.values())


class _Finished(NamedTuple):
    """The M best finished hypotheses of each sentence, best first; score -inf where there are fewer."""

    scores: Tensor  # (B, M)
    log_probabilities: Tensor  # (B, M)
    tokens: Tensor  # (B, M, T), padded

    def add(self, scores: Tensor, log_probabilities: Tensor, tokens: Tensor) -> _Finished:
        """Add more, each (B, K), of tokens (B, K, T); a score of -inf is no hypothesis."""
        longer = torch.nn.functional.pad(self.tokens, (0, tokens.size(2) - self.tokens.size(2)))
        # Stable: of equal scores, the one found first stays.
        best, order = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        order = order[:, : self.scores.size(1)]
        return _Finished(
            best[:, : self.scores.size(1)],
            torch.cat([self.log_probabilities, log_probabilities], dim=1).gather(1, order),
            torch.cat([longer, tokens], dim=1).gather(1, order[:, :, None].expand(-1, -1, tokens.size(2))))

    def select(self, sentences: Tensor) -> _Finished:
        return _Finished(*(each[sentences] for each in self))

    def hypotheses(self, most: Tensor) -> list[list[Hypothesis]]:
        """Return them as Python objects; most (B,): tokens before EOS that a sentence may have."""
        lengths = (self.tokens != PAD_ID).sum(dim=2)
        return [
            [Hypothesis(tuple(ids[:length]), log_probability, score, length >= limit)
             for score, log_probability, length, ids in zip(*row, strict=True) if score > -torch.inf]
            for limit, *row in zip(*(
                column.tolist() for column in (most, self.scores, self.log_probabilities, lengths, self.tokens)), strict=True)]


class _Beams:
    """The open hypotheses of the sentences still searched, and what has finished."""

    def __init__(self, model: Model, source: Tensor, options: SearchOptions, demands: Demands) -> None:
        self.model, self.options, self.source = model, options, source
        count, groups, width, device = len(source), options.groups, width_of(options), source.device
        self.sentences = torch.arange(count, device=device)  # (B,) their numbers in `source`
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]
        self._set_demands(demands)
        self.sampling = Sampling(source, int(self.most.max()), options) if options.sampling and count else None
        self.state = model.start(model.encode(source), source != PAD_ID, follow_coverage=options.coverage_penalty > 0)
        if groups > 1:  # each begins with a hypothesis of its own
            self.state.reorder(torch.zeros(count, groups, dtype=torch.long, device=device))
        self.tokens = torch.full((count, groups, 1), BOS_ID, device=device)  # (B, K, 1 + T), BOS first
        self.scores = torch.zeros(count, groups, device=device)  # (B, K) log-probabilities, -inf where not open
        self.places = torch.full((count, groups), width // groups, device=device)
        self.awaited = torch.full((count,), options.awaited, device=device)  # (B,) hypotheses that have not finished yet
        kept = width if groups > 1 else min(options.n_best, width)  # groups may find equal hypotheses
        nothing = torch.full((count, kept), -torch.inf, device=device)
        self.finished = _Finished(nothing, nothing, torch.zeros(count, kept, 0, dtype=torch.long, device=device))
        self.any_finished = False
        self.at_once = 1  # hypotheses whose probabilities are computed together
        self.look_every = 1 if device.type == "cpu" or count == 1 else LOOK_EVERY
        never = [token for token in NEVER if not (token == UNK_ID and options.copy_unknown)]
        self.never = torch.tensor(never, device=device)
        self._note_limits()

    def _set_demands(self, demands: Demands) -> None:
        """Set the limits of length, the rules, the prefixes and the required phrases."""
        device = self.source.device
        self.fewest, self.most = length_limits(self.source, self.options)  # (B,) tokens before EOS
        self.rules = build_rules(self.options, demands.banned)
        # A required phrase may contain a banned sequence: that is banned only outside the phrase (`RequiredPhrases`).
        phrases = list(itertools.chain.from_iterable(demands.phrases or ()))
        parts = [ids for ids in demands.banned if any(holds(phrase, ids) for phrase in phrases)]
        self.ban = BannedPhrases([ids for ids in demands.banned if ids not in parts])
        self.prefixes: Tensor | None = None  # (sentences, longest prefix), padded
        if demands.prefixes is not None and any(demands.prefixes):
            self.prefixes = pad(demands.prefixes).to(device)
            self.most = self.most + (self.prefixes != PAD_ID).sum(dim=1)
        self.phrases: RequiredPhrases | None = None
        if demands.phrases is not None and any(demands.phrases):
            self.phrases = RequiredPhrases(demands.phrases, parts, width_of(self.options), demands.goes_on)
            self.most = self.most + torch.tensor(self.phrases.tokens, device=device)
        if demands.longest is not None:
            self.most = self.most.clamp(max=demands.longest)
            self.fewest = self.fewest.minimum(self.most)

    def step(self) -> None:
        """Extend every open hypothesis by a token."""
        candidates = self._next_tokens(self._open_rows())
        if self.phrases is None:
            totals, parents, tokens = best_continuations(self.scores, candidates, self.places, self.options)
        else:
            room = self.most - self.tokens.size(2)
            totals, parents, tokens = self.phrases.continuations(self.scores, candidates, self.places, self.sentences, room)
        history = self.tokens
        if parents is not None:
            self.state.reorder(parents)
            history = history.gather(1, parents[:, :, None].expand(-1, -1, history.size(2)))
        tokens = tokens.masked_fill(totals == -torch.inf, PAD_ID)  # fillers may come from the vocabulary's padding
        ends = tokens == EOS_ID
        self.scores = totals
        if self.look_every > 1 or ends.any():
            self.any_finished = True
            self._finish(totals.masked_fill(~ends, -torch.inf), history[:, :, 1:])
            self.scores = totals.masked_fill(ends, -torch.inf)
            if self.options.awaited < math.inf:
                self.awaited = self.awaited - ends.sum(dim=1)
                self.scores = self.scores.masked_fill((self.awaited <= 0)[:, None], -torch.inf)
            if not self.options.places_stay:
                self.places = self.places - ends.unflatten(1, (self.options.groups, -1)).sum(dim=2)
        self.tokens = torch.cat([history, tokens[:, :, None]], dim=2)
        if self.options.places_stay:  # keep as many open hypotheses as there are places
            self.scores, best = self.scores.topk(min(width_of(self.options), self.scores.size(1)))
            self.tokens = self.tokens.gather(1, best[:, :, None].expand(-1, -1, self.tokens.size(2)))
            self.state.reorder(best)
        if (self.tokens.size(2) - 1) % self.look_every == 0 or self.tokens.size(2) - 1 > self.last_step:
            self._drop_done()

    def _next_tokens(self, rows: ActiveHypotheses) -> Candidates:
        """Return what may come next, (B, K, C), with the vocabulary's probabilities for some hypotheses at a time."""
        decoded = self.model.decode_step(self.tokens[:, :, -1], self.state, rows)
        device = self.tokens.device
        sentences, history = rows.sentences(device), rows.pack(self.tokens)
        wanted = self.phrases.wanted(self.sentences[sentences], rows.places(device)) if self.phrases else None
        parts, first = [], 0
        while first < len(rows):
            some = slice(first, first + self.at_once)
            log_probabilities = self.model.log_probabilities(decoded, some)  # (N', V)
            self.at_once = max(1, AT_ONCE // log_probabilities.size(1)) if device.type == "cpu" else len(rows)
            parts.append(self._candidates(
                log_probabilities, sentences[some], history[some], None if wanted is None else wanted[some]))
            first = some.stop
        values, tokens = parts[0] if len(parts) == 1 else (torch.cat(each) for each in zip(*parts, strict=True))
        return Candidates(rows.unpack(values), rows.unpack(tokens))

    def _open_rows(self) -> ActiveHypotheses:
        """Return the open hypotheses, and a few others to make a common shape; all if there is only one, or many on a GPU."""
        sentences, hypotheses = self.scores.shape
        if self.look_every > 1 or sentences * hypotheses == 1:
            return ActiveHypotheses(sentences, hypotheses)
        parts = without_idle(self.scores.flatten() > -torch.inf)
        return ActiveHypotheses(sentences, hypotheses, parts and parts[0])

    def _candidates(self, log_probabilities: Tensor, sentences: Tensor, history: Tensor, wanted: Tensor | None) -> Candidates:
        """Return the next tokens that may be chosen for N' hypotheses of these sentences and tokens so far, (N', 1 + T)."""
        length, unruled = history.size(1) - 1, log_probabilities
        forced: tuple[Tensor, Tensor] | None = None  # each the next token of the prefix, padding after its end, and its value
        if self.prefixes is not None and length < self.prefixes.size(1):
            token = self.prefixes[self.sentences[sentences], length, None]
            forced = token, log_probabilities.gather(1, token)
        if wanted is not None:
            unruled = log_probabilities.clone()
            self.ban(unruled, history)
        self._rule(log_probabilities, sentences, history)
        if wanted is not None:  # EOS obeys the rules
            unruled[:, EOS_ID] = log_probabilities[:, EOS_ID]
        if forced is not None:  # a prefix overrides the rules
            _leave_only(log_probabilities, *forced)
            if wanted is not None:
                _leave_only(unruled, *forced)
        if self.sampling is not None:
            return self.sampling.draw(log_probabilities, self.sentences[sentences], length)
        # Groups need no more: one is penalised only for as many tokens as those before it chose.
        most = min(most_continuations(self.options), log_probabilities.size(-1))
        candidates = Candidates(*top_k(log_probabilities, most))
        return candidates if wanted is None else with_wanted(candidates, wanted, unruled)

    def _rule(self, log_probabilities: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Rule out, in place, the tokens that must not come next: (N', V)."""
        length = history.size(1) - 1
        for rule in self.rules:
            rule(log_probabilities, history)
        log_probabilities.index_fill_(1, self.never, -torch.inf)
        if length < self.last_minimum:
            log_probabilities[:, EOS_ID].masked_fill_(self.fewest[sentences] > length, -torch.inf)
        if length >= self.first_limit:
            ending = log_probabilities[:, EOS_ID].clone()
            log_probabilities.masked_fill_((self.most[sentences] <= length)[:, None], -torch.inf)
            log_probabilities[:, EOS_ID] = ending

    def _finish(self, log_probabilities: Tensor, tokens: Tensor) -> None:
        """Keep the hypotheses that end here, (B, K) with -inf for the others, of tokens (B, K, T) and EOS."""
        scores = log_probabilities / self._length_penalty(tokens.size(2) + 1)
        if self.options.coverage_penalty:
            scores = scores + coverage_penalty(self.state.coverage, self.source[self.sentences], self.options.coverage_penalty)
        self.finished = self.finished.add(scores, log_probabilities, tokens)

    def _drop_done(self) -> None:
        """Drop the sentences that cannot improve; any that remain to fill the shape have no open hypothesis."""
        if not self.any_finished and (self.scores > -torch.inf).all():  # most steps of a single sentence
            return
        bound = self.scores.amax(dim=1) / self.longest_penalty
        open_still = bound > self.finished.scores[:, -1]
        if open_still.all():
            return
        self.scores = self.scores.masked_fill(~open_still[:, None], -torch.inf)
        parts = without_idle(open_still)
        if parts is None:
            return
        keep, done = parts
        for sentence, found in zip(
                self.sentences[done].tolist(), self.finished.select(done).hypotheses(self.most[done]), strict=True):
            self.found[sentence] = found
        if not len(keep):  # nothing is asked of the rest again
            self.sentences = keep
            return
        keep = with_few_moved(keep)
        self.state.select(keep)
        self.finished = self.finished.select(keep)
        for name in ("sentences", "tokens", "scores", "places", "awaited", "fewest", "most"):
            setattr(self, name, getattr(self, name)[keep])
        self._note_limits()

    def _note_limits(self) -> None:
        """Note the steps from which limits matter, so that other steps skip them."""
        if len(self.sentences):
            self.last_minimum, self.first_limit = int(self.fewest.max()), int(self.most.min())
            self.last_step = int(self.most.max())
        self.longest_penalty = self._length_penalty(self.most + 1)

    def _length_penalty(self, length: Tensor | int) -> Any:
        return length_penalty(length, self.options.length_penalty_form, self.options.length_penalty)


def without_idle(busy: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the numbers of the busy, (N,), filled up with idle ones to a common size, and the rest; None without a rest."""
    size = one_of_few(int(busy.sum()))
    if size >= len(busy):
        return None
    busy_first = (~busy).sort(stable=True).indices
    return busy_first[:size].sort().values, busy_first[size:]


def with_few_moved(chosen: Tensor) -> Tensor:
    """Return the same numbers, (N,), in an order in which each number below N is in its own place."""
    stay = chosen[chosen < len(chosen)]
    places = torch.arange(len(chosen), device=chosen.device)
    free = torch.ones_like(places, dtype=torch.bool).index_fill_(0, stay, False)
    places[free] = chosen[chosen >= len(chosen)]
    return places


def one_of_few(size: int) -> int:
    """Return the least number of at least `size` that is one of eight an octave.

    Libraries prepare a matmul again for each shape, which on a CPU costs as much as a small one itself. So a few finished
    sentences and hypotheses remain, which changes no output, and few different shapes occur.
    """
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def _leave_only(log_probabilities: Tensor, tokens: Tensor, values: Tensor) -> None:
    """Rule out, in place, all but a token of this value, (N', 1); nothing where the token is padding."""
    forced = tokens != PAD_ID
    log_probabilities.masked_fill_(forced, -torch.inf)
    log_probabilities.scatter_(1, tokens, values.masked_fill(~forced, -torch.inf))
