"""Shortlist: which target pieces may translate each source piece, and the search among only these.

That is faster than the whole vocabulary (Jean et al. 2015, https://arxiv.org/abs/1412.2007, section 3.3).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from translator.config.options import MOST_CANDIDATES, SearchOptions
from translator.model.active_hypotheses import ActiveHypotheses
from translator.model.inference_layers import log_probabilities, select_outputs
from translator.model.transformer import Transformer
from translator.runtime.device import onednn
from translator.search.engine import States, as_one, one_of_few, search
from translator.search.hypothesis import Demands, Hypothesis, Ids
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# Pieces that any output may hold: the special ones, and the most frequent.
SPECIAL = (PAD_ID, UNK_ID, BOS_ID, EOS_ID)
FREQUENT = 100


@dataclass(frozen=True)
class Shortlist:
    """Candidates for each of S source pieces among V target pieces."""

    candidates: Tensor  # (S, MOST_CANDIDATES), best first, then padding; only padding for an unseen piece
    counts: Tensor  # (V,), how often each target piece occurs in the training pairs

    def fits(self, source_pieces: int, target_pieces: int) -> bool:
        """Return whether it is for vocabularies of these sizes."""
        shapes = (source_pieces, MOST_CANDIDATES), (target_pieces,)
        return (self.candidates.shape, self.counts.shape) == shapes and bool(
            ((self.candidates >= 0) & (self.candidates < target_pieces)).all())

    def to(self, device: torch.device) -> Shortlist:
        return Shortlist(self.candidates.to(device), self.counts.to(device))

    def allowed(self, source: Tensor, candidates: int) -> Tensor:
        """Return which target pieces outputs for each sentence of source (B, S) may hold: (B, V).

        Of each source piece the best `candidates`; all pieces for a sentence that holds an unseen one.
        """
        allowed = torch.zeros(len(source), len(self.counts), dtype=torch.bool, device=source.device)
        allowed.scatter_(1, self.candidates[source, :candidates].flatten(1), True)
        allowed[:, self.counts.topk(min(FREQUENT, len(self.counts))).indices] = True
        allowed[:, SPECIAL] = True
        unseen = ((self.candidates[source, 0] == PAD_ID) & (source != PAD_ID)).any(dim=1)
        return allowed | unseen[:, None]


def search_among(
    models: Sequence[Transformer], allowed: Tensor, source: Tensor, options: SearchOptions, demands: Demands
) -> list[list[Hypothesis]]:
    """Search for outputs of the pieces allowed to each sentence, (B, V), and the pieces of its demands.

    Probabilities are normalised over these. The special pieces, 0 to 3, must be allowed.
    """
    allowed = allowed.clone()
    prefixes, phrases = demands.prefixes or [()] * len(source), demands.phrases or [()] * len(source)
    for of_sentence, prefix, required in zip(allowed, prefixes, phrases, strict=True):
        of_sentence[[*prefix, *itertools.chain.from_iterable(required)]] = True
    used = allowed.any(dim=0)
    count = int(used.sum())
    used[(~used).nonzero()[: one_of_few(count) - count, 0]] = True  # fill up to a common shape; these are allowed nowhere
    pieces = used.nonzero()[:, 0]
    ids = pieces.tolist()
    number = {piece: i for i, piece in enumerate(ids)}

    def renumbered(phrase: Ids) -> list[int]:
        return [number[piece] for piece in phrase]

    among = Demands(
        [renumbered(prefix) for prefix in prefixes], [[renumbered(phrase) for phrase in required] for required in phrases],
        [renumbered(phrase) for phrase in demands.banned if all(piece in number for piece in phrase)],
        lambda last, token: demands.goes_on(ids[last], ids[token]), demands.longest)
    restricted = as_one([_Restricted(model, pieces, allowed[:, pieces]) for model in models])
    return [
        [replace(hypothesis, ids=tuple(ids[i] for i in hypothesis.ids)) for hypothesis in hypotheses]
        for hypotheses in search(restricted, source, options, among)]


class _Restricted:
    """A model whose target vocabulary is P pieces; each sentence may use the ones that `allowed` (B, P) marks."""

    def __init__(self, model: Transformer, pieces: Tensor, allowed: Tensor) -> None:
        self.model, self.pieces = model, pieces
        self.encode = model.encode
        self.output = select_outputs(model.output, pieces)
        self.ruled_out = torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)

    def start(self, memory: Tensor, mask: Tensor, *, follow_coverage: bool = False) -> _State:
        copies = len(mask) // max(1, len(self.ruled_out))  # of each sentence, in sampling
        return _State(
            self.model.start(memory, mask, follow_coverage=follow_coverage), self.ruled_out.repeat_interleave(copies, dim=0))

    def decode_step(self, tokens: Tensor, state: _State, rows: ActiveHypotheses) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.model.decode_step(self.pieces[tokens], state.states[0], rows)
        return hidden, state.ruled_out, rows.sentences(tokens.device)

    def log_probabilities(self, decoded: tuple[Tensor, Tensor, Tensor], some: slice) -> Tensor:
        hidden, ruled_out, sentences = decoded
        with onednn(len(hidden) > 1):
            logits = self.output(hidden[some])
        return log_probabilities(logits + ruled_out[sentences[some]])


class _State(States):
    """The state of a model's decoding, and what is ruled out for the sentences still searched: 0 or -inf, (B, P)."""

    def __init__(self, inner: Any, ruled_out: Tensor) -> None:
        super().__init__([inner])
        self.ruled_out = ruled_out

    def select(self, sentences: Tensor) -> None:
        super().select(sentences)
        self.ruled_out = self.ruled_out[sentences]
