"""Required phrases: beam search with dynamic beam allocation (Post and Vilar 2018, https://arxiv.org/abs/1804.06609).

Hypotheses compete only with others that have met the same number of phrase tokens. Otherwise likelier ones that avoid the
phrases would crowd out one that has begun a phrase.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from translator.data.batching import pad
from translator.search.choice import Candidates, Continuations
from translator.search.hypothesis import GoesOn, Ids
from translator.text.tokenizer import EOS_ID, PAD_ID

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class Progress:
    """How far an output has come with the phrases of its sentence."""

    missing: frozenset[Phrase]
    begun: Phrase = ()  # its last tokens, if a missing phrase starts with them; a complete phrase is met once its word ends

    def after(self, token: int, goes_on: GoesOn) -> Progress:
        """Return the progress after one more token."""
        missing, begun = self.missing, self.begun
        if begun in missing and not goes_on(begun[-1], token):
            missing, begun = missing - {begun}, ()
        begun = (*begun, token)
        while begun and not any(phrase[: len(begun)] == begun for phrase in missing):
            begun = begun[1:]
        return Progress(missing, begun)

    @property
    def may_end(self) -> bool:
        return self.missing <= {self.begun}

    @property
    def tokens_missing(self) -> int:
        return sum(map(len, self.missing)) - len(self.begun)

    def next_tokens(self) -> set[int]:
        """Return the tokens that continue a phrase or begin one; EOS after the last."""
        if self.missing == {self.begun}:
            return {EOS_ID}
        missing = self.missing - {self.begun}
        continuing = {phrase[len(self.begun)] for phrase in missing if phrase[: len(self.begun)] == self.begun}
        return continuing | {phrase[0] for phrase in missing}


class Candidate(NamedTuple):
    """A continuation: its log-probability, the hypothesis it continues, the token, and the progress after it."""

    total: float
    parent: int
    token: int
    progress: Progress


class RequiredPhrases:
    """Choose continuations so that every output contains all its phrases."""

    def __init__(self, phrases: Sequence[Sequence[Ids]], banned: Sequence[Ids], beam_size: int, goes_on: GoesOn) -> None:
        """`phrases`: required ones for each sentence; one within a second one is met with it.

        banned: sequences that may come only as part of these phrases.
        """
        self.banned, self.beam_size, self.goes_on = banned, beam_size, goes_on
        self.progress = [[Progress(_without_parts({tuple(phrase) for phrase in wanted if phrase}))] for wanted in phrases]
        self.tokens = [progress.tokens_missing for [progress] in self.progress]  # of each sentence's phrases

    def wanted(self, sentences: Tensor, hypotheses: Tensor) -> Tensor:
        """Return the next tokens that phrases need, (N, W), padded, for N hypotheses, by sentence and place there, (N,)."""
        tokens = []
        for sentence, hypothesis in zip(sentences.tolist(), hypotheses.tolist(), strict=True):
            progress = self.progress[sentence]
            tokens.append(sorted(progress[hypothesis].next_tokens()) if hypothesis < len(progress) else [])
        return pad(tokens).to(sentences.device)

    def continuations(
        self, scores: Tensor, candidates: Candidates, places: Tensor, sentences: Tensor, room: Tensor
    ) -> Continuations:
        """Choose like `best_continuations`, from candidates (B, K, C) that include the wanted tokens.

        room (B,): tokens before EOS that an output may still have after this step.
        """
        chosen: list[list[Candidate]] = []
        for sentence, open_places, space, *hypotheses in zip(
                sentences.tolist(), places[:, 0].tolist(), room.tolist(), scores.tolist(), candidates.tokens.tolist(),
                candidates.log_probabilities.tolist(), strict=True):
            possible: list[Candidate] = []
            for parent, (start, tokens, values) in enumerate(zip(*hypotheses, strict=True)):
                if start > -torch.inf:
                    # The wanted tokens come last, so that their values without rules count.
                    steps = dict(zip(tokens, values, strict=True))
                    possible += self._continue(parent, start, self.progress[sentence][parent], steps, space)
            chosen.append(_allocate(possible, open_places))
            self.progress[sentence] = [candidate.progress for candidate in chosen[-1]]
        return _as_tensors(chosen, self.beam_size, scores)

    def _continue(
        self, parent: int, start: float, progress: Progress, steps: dict[int, float], space: int
    ) -> Iterator[Candidate]:
        """Yield the continuations of a hypothesis by `steps`, tokens with their log-probabilities, that its phrases allow."""
        begun, possible = progress.begun, {token: value for token, value in steps.items() if value > -torch.inf}
        bound = begun not in progress.missing and any(holds(begun, ids) for ids in self.banned)
        for token, value in possible.items():
            if token != EOS_ID or progress.may_end:
                after = progress.after(token, self.goes_on)
                # The only possible token must come, as in a prefix.
                stays = after.begun == (*begun, token) or len(possible) == 1
                if (stays or not bound) and (after.tokens_missing <= space or token == EOS_ID):
                    yield Candidate(start + value, parent, token, after)


def holds(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    """Return whether `ids` contain the phrase."""
    return any(tuple(ids[start : start + len(phrase)]) == tuple(phrase) for start in range(len(ids) - len(phrase) + 1))


def with_wanted(candidates: Candidates, wanted: Tensor, unruled: Tensor) -> Candidates:
    """Add to candidates (N, C) the tokens that phrases need, (N, W), with their values before rules, of unruled (N, V)."""
    values = unruled.gather(1, wanted).masked_fill(wanted == PAD_ID, -torch.inf)
    return Candidates(*(torch.cat(both, dim=1) for both in zip(candidates, (values, wanted), strict=True)))


def _without_parts(phrases: set[Phrase]) -> frozenset[Phrase]:
    return frozenset(p for p in phrases if not any(p != other and holds(other, p) for other in phrases))


def _allocate(candidates: list[Candidate], places: int) -> list[Candidate]:
    """Choose the best of each bank, then the second of each, and so on; those with fewer tokens missing first."""
    by_bank = sorted(candidates, key=lambda c: (c.progress.tokens_missing, -c.total))
    banks = itertools.groupby(by_bank, key=lambda c: c.progress.tokens_missing)
    ranked = sorted((ranked for _, bank in banks for ranked in enumerate(bank)), key=lambda ranked: ranked[0])
    return [candidate for _, candidate in ranked[:places]]


def _as_tensors(chosen: list[list[Candidate]], width: int, scores: Tensor) -> Continuations:
    """Return rows of equal width, filled up with hypotheses that are not open."""
    filler = Candidate(-torch.inf, 0, EOS_ID, Progress(frozenset()))
    rows = [row + [filler] * (width - len(row)) for row in chosen]
    totals = torch.tensor([[c.total for c in row] for row in rows], dtype=scores.dtype, device=scores.device)
    parents, tokens = (torch.tensor([[c[field] for c in row] for row in rows], device=scores.device) for field in (1, 2))
    return Continuations(totals, parents, tokens)
