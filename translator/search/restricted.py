"""Search among some pieces of the vocabulary, for each sentence its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from translator.config.options import SearchConfig
from translator.model.active_hypotheses import OpenRows
from translator.model.inference_layers import log_probabilities, some_outputs
from translator.runtime.cpu import onednn
from translator.search.engine import Model, one_of_few, search
from translator.search.hypothesis import Demands, Hypothesis


class Projecting(Model, Protocol):
    """A model whose logits are a linear layer's outputs of what a step has decoded, (N, D)."""

    @property
    def output(self) -> nn.Module: ...


def search_among(
    models: Sequence[Projecting], as_one: Callable[[Sequence[Model]], Model], allowed: Tensor, source: Tensor,
    config: SearchConfig, demands: Demands
) -> list[list[Hypothesis]]:
    """As `search` by the models `as_one`, for outputs of the pieces allowed to each sentence, (B, V), and those demanded of it.

    All probability is theirs. The special pieces, 0 to 3, must be allowed.
    """
    allowed = allowed.clone()
    for row, prefix in enumerate(demands.prefixes or ()):
        allowed[row, list(prefix)] = True
    for row, phrases in enumerate(demands.phrases or ()):
        for phrase in phrases:
            allowed[row, list(phrase)] = True
    used = allowed.any(dim=0)
    count = int(used.sum())
    used[(~used).nonzero()[: one_of_few(count) - count, 0]] = True  # some that are allowed to none, for a usual shape
    pieces = used.nonzero()[:, 0]
    whole = pieces.tolist()
    number = {piece: i for i, piece in enumerate(whole)}

    def renumbered(ids: Sequence[int]) -> list[int]:
        return [number[piece] for piece in ids]

    among = Demands(
        demands.prefixes and [renumbered(prefix) for prefix in demands.prefixes],
        demands.phrases and [[renumbered(phrase) for phrase in phrases] for phrases in demands.phrases],
        [renumbered(phrase) for phrase in demands.banned if all(piece in number for piece in phrase)],
        lambda last, token: demands.goes_on(whole[last], whole[token]), demands.longest)
    model = as_one([_Restricted(model, pieces, allowed[:, pieces]) for model in models])
    found = search(model, source, config, among)
    return [
        [replace(hypothesis, ids=tuple(whole[i] for i in hypothesis.ids)) for hypothesis in hypotheses]
        for hypotheses in found]


class _Restricted:
    """A model whose target vocabulary is P pieces, of which each sentence may use those that `allowed` (B, P) says."""

    def __init__(self, model: Projecting, pieces: Tensor, allowed: Tensor) -> None:
        self.model, self.pieces = model, pieces
        self.output = some_outputs(model.output, pieces)
        self.ruled_out = torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)

    def encode(self, source: Tensor) -> Tensor:
        return self.model.encode(source)

    def start(self, memory: Tensor, mask: Tensor, *, follow_coverage: bool = False) -> _State:
        copies = len(mask) // max(1, len(self.ruled_out))  # of each sentence, to be sampled
        return _State(
            self.model.start(memory, mask, follow_coverage=follow_coverage), self.ruled_out.repeat_interleave(copies, dim=0))

    def decode_step(self, tokens: Tensor, state: _State, rows: OpenRows) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.model.decode_step(self.pieces[tokens], state.inner, rows)
        return hidden, state.ruled_out, rows.sentences(tokens.device)

    def log_probabilities(self, decoded: tuple[Tensor, Tensor, Tensor], some: slice) -> Tensor:
        hidden, ruled_out, sentences = decoded
        with onednn(len(hidden) > 1):
            logits = self.output(hidden[some])
        return log_probabilities(logits + ruled_out[sentences[some]])


class _State:
    """The state of a model's decoding, and what is ruled out for the sentences still searched: 0 or -inf, (B, P)."""

    def __init__(self, inner: Any, ruled_out: Tensor) -> None:
        self.inner, self.ruled_out = inner, ruled_out

    @property
    def coverage(self) -> Tensor:
        return self.inner.coverage

    def reorder(self, parents: Tensor) -> None:
        self.inner.reorder(parents)

    def select(self, sentences: Tensor) -> None:
        self.inner.select(sentences)
        self.ruled_out = self.ruled_out[sentences]
