"""The stepping engine of every search.

Shapes: B sentences still searched, K hypotheses each, of which N in all are open, N' of them taken at once; T tokens so far, V
target vocabulary and what a model adds to it, of probability 0; M outputs kept of each sentence.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from translator.config.options import SearchConfig
from translator.data.batching import pad
from translator.model.active_hypotheses import OpenRows
from translator.search.choice import Candidates, Continuations, Sampling, best_candidates, best_continuations
from translator.search.hypothesis import Demands, Hypothesis, coverage_penalty, length_limits, length_penalty
from translator.search.phrases import RequiredPhrases, holds, with_wanted
from translator.search.rules import BannedPhrases, rules_of
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# Never produced: markers of training, and, but where it is to be copied, the mark of an unknown piece.
NEVER = (PAD_ID, UNK_ID, BOS_ID)
# Steps between two looks at what has ended, each of which makes a GPU wait. A CPU looks at every step, and so does a search for
# a single sentence, for which a GPU has to wait anyway (docs/speed.md).
LOOK_EVERY = 8
# Probabilities worked out at once on a CPU: more leave its cache, fewer make products less efficient.
AT_ONCE = 1 << 21


class Model(Protocol):
    """What search asks of a model; `translator.model.transformer.Transformer` says what each does."""

    def encode(self, source: Tensor) -> Any: ...
    def start(self, memory: Any, mask: Tensor, *, follow_coverage: bool = False) -> Any: ...
    def decode_step(self, tokens: Tensor, state: Any, rows: OpenRows) -> Any: ...
    def log_probabilities(self, decoded: Any, some: slice) -> Tensor: ...  # may be written over


@torch.inference_mode()
def search(
    model: Model, source: Tensor, config: SearchConfig, demands: Demands | None = None
) -> list[list[Hypothesis]]:
    """The `config.n_best` best hypotheses for each sentence of source (B, S), best first; different ones, unless sampled.

    A sentence has `beam_size` places. At each step the most probable continuations of its open hypotheses fill the places
    that finished ones have not taken, by total log-probability; those that end in EOS finish. At its longest length a
    hypothesis can but end. So with one place this is greedy search. In sampling each place draws for itself. With
    `keep_places` no place is ever taken; with `patience` as well a sentence is also done, whatever may still come, when
    patience x beam_size hypotheses have finished (Kasai et al. 2022, https://arxiv.org/abs/2204.05424).

    A sentence is done when no place is open, or when no open hypothesis can still be among the n best. That is exact:
    log-probabilities add numbers that are never positive, so whatever an open hypothesis of log-probability p <= 0 becomes, its
    score is p' / penalty(length) + coverage with p' <= p, length <= the longest allowed and coverage <= 0. As the penalty never
    falls with length, the score is at most p / penalty(longest), and that is compared with the n-th best finished score.
    """
    demands = demands or Demands()
    if config.sampling:
        return _sample(model, source, config, demands)
    found = _search(_Beams(model, source, config, demands))
    return [_distinct(hypotheses)[: config.n_best] for hypotheses in found]


def _search(beams: _Beams) -> list[list[Hypothesis]]:
    while len(beams.sentences):
        beams.step()
    return beams.found


def _sample(model: Model, source: Tensor, config: SearchConfig, demands: Demands) -> list[list[Hypothesis]]:
    """As many samples of each sentence as it has places, each sought by itself: none has to do with another."""
    copies, one = config.beam_size, replace(config, beam_size=1, n_best=1, mbr=None)
    if demands.prefixes is not None:
        demands = replace(demands, prefixes=[prefix for prefix in demands.prefixes for _ in range(copies)])
    found = _search(_Beams(model, source.repeat_interleave(copies, dim=0), one, demands, copies=copies))
    samples = [
        sorted(itertools.chain.from_iterable(found[first : first + copies]), key=lambda h: -h.score)
        for first in range(0, len(found), copies)]
    return [hypotheses[: config.n_best] for hypotheses in samples]


def _distinct(found: list[Hypothesis]) -> list[Hypothesis]:
    """Without those that two groups have found."""
    first: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in found:
        first.setdefault(hypothesis.ids, hypothesis)
    return list(first.values())


@dataclass
class _Finished:
    """The M best finished hypotheses of each sentence, best first; score -inf where there are fewer."""

    scores: Tensor  # (B, M)
    log_probabilities: Tensor  # (B, M)
    lengths: Tensor  # (B, M), tokens before EOS
    tokens: Tensor  # (B, M, T), padded

    @classmethod
    def none(cls, sentences: int, kept: int, device: torch.device) -> _Finished:
        nothing = torch.full((sentences, kept), -torch.inf, device=device)
        zeros = torch.zeros(sentences, kept, dtype=torch.long, device=device)
        return cls(nothing, nothing, zeros, zeros[:, :, None][:, :, :0])

    def add(self, scores: Tensor, log_probabilities: Tensor, tokens: Tensor) -> _Finished:
        """With more, each (B, K), of tokens (B, K, T); a score of -inf is no hypothesis."""
        lengths = torch.full_like(self.lengths[:, :1], tokens.size(2)).expand(scores.shape)
        longer = torch.nn.functional.pad(self.tokens, (0, tokens.size(2) - self.tokens.size(2)))
        # Stable: of equals, the first one found stays.
        best, order = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        order = order[:, : self.scores.size(1)]
        return _Finished(
            best[:, : self.scores.size(1)],
            torch.cat([self.log_probabilities, log_probabilities], dim=1).gather(1, order),
            torch.cat([self.lengths, lengths], dim=1).gather(1, order),
            torch.cat([longer, tokens], dim=1).gather(1, order[:, :, None].expand(-1, -1, tokens.size(2))))

    def select(self, sentences: Tensor) -> _Finished:
        return _Finished(
            self.scores[sentences], self.log_probabilities[sentences], self.lengths[sentences], self.tokens[sentences])

    def hypotheses(self, most: Tensor) -> list[list[Hypothesis]]:
        """As Python objects; most (B,): tokens before EOS that a sentence may have."""
        return [
            [Hypothesis(tuple(ids[:length]), log_probability, score, length >= limit)
             for score, log_probability, length, ids in zip(*row, strict=True) if score > -torch.inf]
            for limit, *row in zip(
                most.tolist(), self.scores.tolist(), self.log_probabilities.tolist(), self.lengths.tolist(),
                self.tokens.tolist(), strict=True)]


class _Beams:
    """The open hypotheses of the sentences still searched, and what has finished."""

    def __init__(
        self, model: Model, source: Tensor, config: SearchConfig, demands: Demands, *, copies: int = 1
    ) -> None:
        """`copies`: how often in a row each sentence stands in `source`, to be sampled."""
        self.model, self.config, self.source = model, config, source
        count, device = len(source), source.device
        self.sentences = torch.arange(count, device=device)  # (B,) which sentences these are
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.fewest, self.most = length_limits(source, config)  # (B,) tokens before EOS
        self.rules = rules_of(config, demands.banned)
        # What a phrase is spelled with must come: bans of its own tokens bind only where it is left (`RequiredPhrases`).
        phrases = list(itertools.chain.from_iterable(demands.phrases or ()))
        parts = [ids for ids in demands.banned if any(holds(phrase, ids) for phrase in phrases)]
        self.ban = BannedPhrases([ids for ids in demands.banned if ids not in parts])
        self.prefixes: Tensor | None = None  # (sentences, longest prefix), padded
        if demands.prefixes is not None and any(demands.prefixes):
            self.prefixes = pad(demands.prefixes).to(device)
            self.most = self.most + (self.prefixes != PAD_ID).sum(dim=1)
        self.phrases: RequiredPhrases | None = None
        if demands.phrases is not None and any(demands.phrases):
            self.phrases = RequiredPhrases(demands.phrases, parts, config.beam_size, demands.goes_on)
            self.most = self.most + torch.tensor([self.phrases.tokens(i) for i in range(count)], device=device)
        self.sampling: Sampling | None = None
        if demands.longest is not None:
            self.most = self.most.clamp(max=demands.longest)
            self.fewest = self.fewest.minimum(self.most)
        if config.sampling and count:
            self.sampling = Sampling(source, copies, int(self.most.max()), config)
        self.state = model.start(model.encode(source), source != PAD_ID, follow_coverage=config.coverage_penalty > 0)
        if config.groups > 1:  # each begins with a hypothesis of its own
            self.state.reorder(torch.zeros(count, config.groups, dtype=torch.long, device=device))
        self.tokens = torch.full((count, config.groups, 1), BOS_ID, device=device)  # (B, K, 1 + T), BOS first
        self.scores = torch.zeros(count, config.groups, device=device)  # (B, K) log-probabilities, -inf where not open
        self.places = torch.full((count, config.groups), config.beam_size // config.groups, device=device)
        self.awaited = torch.full((count,), config.awaited, device=device)  # (B,) hypotheses that have not finished yet
        # Where two may be equal, all are kept, to be told apart in the end.
        kept = config.beam_size if config.groups > 1 else config.n_best
        self.finished = _Finished.none(count, kept, device)
        self.any_finished = False
        self.at_once = 1  # hypotheses whose probabilities are worked out together
        self.look_every = 1 if device.type == "cpu" or count == 1 else LOOK_EVERY
        never = [token for token in NEVER if not (token == UNK_ID and config.copy_unknown)]
        self.never = torch.tensor(never, device=device)
        self._note_limits()

    def step(self) -> None:
        """Extend every open hypothesis by a token."""
        totals, parents, tokens = self._continuations()
        history = self.tokens
        if parents is not None:
            self.state.reorder(parents)
            history = history.gather(1, parents[:, :, None].expand(-1, -1, history.size(2)))
        tokens = tokens.masked_fill(totals == -torch.inf, PAD_ID)  # what is none may stand beyond the vocabulary
        ends = tokens == EOS_ID
        self.scores = totals
        if self.look_every > 1 or ends.any():
            self.any_finished = True
            self._finish(totals.masked_fill(~ends, -torch.inf), history[:, :, 1:])
            self.scores = totals.masked_fill(ends, -torch.inf)
            if self.config.patience is not None:
                self.awaited = self.awaited - ends.sum(dim=1)
                self.scores = self.scores.masked_fill((self.awaited <= 0)[:, None], -torch.inf)
            if not self.config.places_stay:
                self.places = self.places - ends.unflatten(1, (self.config.groups, -1)).sum(dim=2)
        self.tokens = torch.cat([history, tokens[:, :, None]], dim=2)
        if self.config.places_stay:
            self._keep_best()
        if (self.tokens.size(2) - 1) % self.look_every == 0 or self.tokens.size(2) - 1 > self.last_step:
            self._drop_done()

    def _continuations(self) -> Continuations:
        """What lives on."""
        candidates = self._next_tokens(self._open_rows())
        if self.phrases is None:
            return best_continuations(self.scores, candidates, self.places, self.config)
        room = self.most - self.tokens.size(2)
        return self.phrases.continuations(self.scores, candidates, self.places, self.sentences, room)

    def _next_tokens(self, rows: OpenRows) -> Candidates:
        """What may come next, (B, K, C). Probabilities are worked out for some hypotheses at a time: few exist at once."""
        decoded = self.model.decode_step(self.tokens[:, :, -1], self.state, rows)
        device = self.tokens.device
        sentences, history = rows.sentences(device), rows.pack(self.tokens)
        wanted = self.phrases.wanted(self.sentences[sentences], rows.places(device)) if self.phrases else None
        parts, first = [], 0
        while first < len(rows):
            some = slice(first, first + self.at_once)
            log_probabilities = self.model.log_probabilities(decoded, some)  # (N', V)
            self.at_once = _rows_at_once(log_probabilities, len(rows))
            of_some = None if wanted is None else wanted[some]
            parts.append(self._candidates(log_probabilities, sentences[some], history[some], of_some))
            first = some.stop
        values, tokens = parts[0] if len(parts) == 1 else (torch.cat(each) for each in zip(*parts, strict=True))
        return Candidates(rows.unpack(values), rows.unpack(tokens))

    def _open_rows(self) -> OpenRows:
        """The open hypotheses, and a few that are not for a usual shape; all where there is but one, or many on a GPU."""
        sentences, hypotheses = self.scores.shape
        if self.look_every > 1 or sentences * hypotheses == 1:
            return OpenRows(sentences, hypotheses)
        parts = without_idle(self.scores.flatten() > -torch.inf)
        return OpenRows(sentences, hypotheses, parts and parts[0])

    def _candidates(
        self, log_probabilities: Tensor, sentences: Tensor, history: Tensor, wanted: Tensor | None
    ) -> Candidates:
        """The next tokens that may be chosen for N' hypotheses: of each its sentence and tokens so far, (N', 1 + T)."""
        forced = self._next_of_prefix(log_probabilities, sentences)
        unruled = None if wanted is None else log_probabilities.clone()
        if unruled is not None:
            self.ban(unruled, history)
        self._rule(log_probabilities, sentences, history)
        if unruled is not None:  # an output ends by the rules
            unruled[:, EOS_ID] = log_probabilities[:, EOS_ID]
        if forced is not None:  # whatever the rules
            _leave_only(log_probabilities, *forced)
            if unruled is not None:
                _leave_only(unruled, *forced)
        if self.sampling is not None:
            return self.sampling.draw(log_probabilities, self.sentences[sentences], history.size(1) - 1)
        candidates = best_candidates(log_probabilities, self.config)
        return candidates if wanted is None or unruled is None else with_wanted(candidates, wanted, unruled)

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

    def _next_of_prefix(self, log_probabilities: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor] | None:
        """The next token of each sentence's prefix, padding where it has come to its end, and its value: two of (N', 1)."""
        length = self.tokens.size(2) - 1
        if self.prefixes is None or length >= self.prefixes.size(1):
            return None
        token = self.prefixes[self.sentences[sentences], length, None]
        return token, log_probabilities.gather(1, token)

    def _finish(self, log_probabilities: Tensor, tokens: Tensor) -> None:
        """Put away the hypotheses that end here, (B, K) with -inf for those that do not, of tokens (B, K, T) and EOS."""
        scores = log_probabilities / length_penalty(tokens.size(2) + 1, self.config)
        if self.config.coverage_penalty:
            scores = scores + coverage_penalty(self.state.coverage, self.source[self.sentences], self.config.coverage_penalty)
        self.finished = self.finished.add(scores, log_probabilities, tokens)

    def _keep_best(self) -> None:
        """Leave as many open hypotheses as there are places."""
        self.scores, best = self.scores.topk(min(self.config.beam_size, self.scores.size(1)))
        self.tokens = self.tokens.gather(1, best[:, :, None].expand(-1, -1, self.tokens.size(2)))
        self.state.reorder(best)

    def _drop_done(self) -> None:
        """Take the sentences out of which nothing better can come; those that stay for the shape have no open hypothesis."""
        if not self.any_finished and (self.scores > -torch.inf).all():  # as at most steps of a single sentence
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
        """The steps at which limits begin and end to matter, so that others need not ask."""
        any_left = len(self.sentences) > 0
        self.last_minimum = int(self.fewest.max()) if any_left else 0
        self.first_limit = int(self.most.min()) if any_left else 0
        self.last_step = int(self.most.max()) if any_left else 0
        self.longest_penalty = length_penalty(self.most + 1, self.config)


def without_idle(busy: Tensor) -> tuple[Tensor, Tensor] | None:
    """Those that are busy, (N,), with idle ones to make one of few numbers, in order, and the rest; None without a rest."""
    size = one_of_few(int(busy.sum()))
    if size >= len(busy):
        return None
    busy_first = (~busy).sort(stable=True).indices
    return busy_first[:size].sort().values, busy_first[size:]


def with_few_moved(chosen: Tensor) -> Tensor:
    """The same numbers, (N,), in an order in which those under N stand each in its own place."""
    stay = chosen[chosen < len(chosen)]
    places = torch.arange(len(chosen), device=chosen.device)
    free = torch.ones_like(places, dtype=torch.bool).index_fill_(0, stay, False)
    places[free] = chosen[chosen >= len(chosen)]
    return places


def one_of_few(size: int) -> int:
    """The least number of at least `size` that is one of eight an octave.

    Libraries prepare a product anew for each shape they meet, which on a CPU costs as much as a small one itself. So sentences
    and hypotheses leave in groups: a few that are done stay on, which changes nothing that was found, and few shapes occur.
    """
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def _leave_only(log_probabilities: Tensor, tokens: Tensor, values: Tensor) -> None:
    """Rule out, in place, all but a token of this value, (N', 1); nothing where that is padding."""
    there = tokens != PAD_ID
    log_probabilities.masked_fill_(there, -torch.inf)
    log_probabilities.scatter_(1, tokens, values.masked_fill(~there, -torch.inf))


def _rows_at_once(log_probabilities: Tensor, count: int) -> int:
    """How many hypotheses to take together, by the size of what one takes: all but on a CPU."""
    return max(1, AT_ONCE // log_probabilities.size(1)) if log_probabilities.device.type == "cpu" else count
