"""Phrases that outputs must hold: beam search with dynamic beam allocation (floor 3).

Post and Vilar 2018, https://arxiv.org/abs/1804.06609: hypotheses compete only with those that have met as many tokens of the
phrases, so that none which has begun a phrase is crowded out by likelier ones that avoid it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from translator.search.choice import Continuations, top_k
from translator.tokenizer import EOS_ID

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class Progress:
    """How far one output is with the phrases of its sentence."""

    missing: frozenset[Phrase]
    begun: Phrase = ()  # its last tokens, as far as a missing phrase starts with them

    def after(self, token: int) -> Progress:
        """With one token more."""
        begun = (*self.begun, token)
        while begun and not any(phrase[: len(begun)] == begun for phrase in self.missing):
            begun = begun[1:]
        return Progress(self.missing - {begun}) if begun in self.missing else Progress(self.missing, begun)

    @property
    def tokens_missing(self) -> int:
        """The fewest tokens that hold all that is missing, one phrase after another."""
        return sum(map(len, self.missing)) - len(self.begun)

    def next_tokens(self) -> set[int]:
        """The tokens that go on with a phrase or begin one."""
        going_on = {phrase[len(self.begun)] for phrase in self.missing if phrase[: len(self.begun)] == self.begun}
        return going_on | {phrase[0] for phrase in self.missing}


class Candidate(NamedTuple):
    """A continuation: its log-probability, the hypothesis it continues, the token, and how far that is with the phrases."""

    total: float
    parent: int
    token: int
    progress: Progress


class RequiredPhrases:
    """Chooses continuations so that every output ends with all its phrases met."""

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], beam_size: int) -> None:
        """`phrases`: for each sentence, those that its outputs must hold."""
        self.beam_size = beam_size
        self.progress = [[Progress(frozenset(tuple(p) for p in wanted if p))] for wanted in phrases]

    def tokens(self, sentence: int) -> int:
        """How many tokens the sentence's phrases have."""
        return self.progress[sentence][0].tokens_missing

    def continuations(
        self, scores: Tensor, log_probabilities: Tensor, unruled: Tensor, places: Tensor, sentences: Tensor, room: Tensor
    ) -> Continuations:
        """Like `best_continuations`. No rule holds back a phrase: `unruled` are the log-probabilities without rules, (B, K, V).

        room (B,): tokens, EOS not counted, that an output may still have after this step's.
        """
        best, tokens = top_k(log_probabilities, min(self.beam_size, log_probabilities.size(2)))
        chosen: list[list[Candidate]] = []
        for row, (sentence, open_places, space) in enumerate(
                zip(sentences.tolist(), places[:, 0].tolist(), room.tolist(), strict=True)):
            candidates: list[Candidate] = []
            for parent, (start, likely, values) in enumerate(
                    zip(scores[row].tolist(), tokens[row].tolist(), best[row].tolist(), strict=True)):
                if start > -torch.inf:
                    progress = self.progress[sentence][parent]
                    wanted = sorted(progress.next_tokens())
                    steps = dict(zip(likely, values, strict=True)) | dict(
                        zip(wanted, unruled[row, parent, wanted].tolist(), strict=True))
                    candidates += _continue(parent, start, progress, steps, space)
            chosen.append(_allocate(candidates, open_places))
            self.progress[sentence] = [candidate.progress for candidate in chosen[-1]]
        return _as_tensors(chosen, self.beam_size, scores)


def _continue(
    parent: int, start: float, progress: Progress, steps: dict[int, float], space: int
) -> Iterator[Candidate]:
    """What becomes of a hypothesis by each of the `steps`, tokens with their log-probabilities, as far as its phrases allow."""
    for token, value in steps.items():
        if value > -torch.inf and not (token == EOS_ID and progress.missing):
            after = progress.after(token)
            if after.tokens_missing <= space or token == EOS_ID:
                yield Candidate(start + value, parent, token, after)


def _allocate(candidates: list[Candidate], places: int) -> list[Candidate]:
    """The best of each bank, then the second of each, and so on; those with more of their phrases first."""
    by_bank = sorted(candidates, key=lambda c: (c.progress.tokens_missing, -c.total))
    ranked: list[tuple[int, int, Candidate]] = []
    for missing, bank in itertools.groupby(by_bank, key=lambda c: c.progress.tokens_missing):
        ranked += [(rank, missing, candidate) for rank, candidate in enumerate(bank)]
    return [candidate for _, _, candidate in sorted(ranked, key=lambda r: r[:2])[:places]]


def _as_tensors(chosen: list[list[Candidate]], width: int, scores: Tensor) -> Continuations:
    """Rows of equal width, filled up with hypotheses that are not open."""
    filler = Candidate(-torch.inf, 0, EOS_ID, Progress(frozenset()))
    rows = [row + [filler] * (width - len(row)) for row in chosen]
    totals = torch.tensor([[c.total for c in row] for row in rows], dtype=scores.dtype, device=scores.device)
    parents, tokens = (
        torch.tensor([[c[field] for c in row] for row in rows], device=scores.device) for field in (1, 2))
    return Continuations(totals, parents, tokens)
