"""Several models that search as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from translator.model.active_hypotheses import OpenRows
from translator.search.engine import Model


def as_one(models: Sequence[Model]) -> Model:
    """Return a single model as it is, several as an ensemble."""
    return models[0] if len(models) == 1 else Ensemble(models)


class Ensemble:
    """Models of the same vocabularies. The probability of a token is the mean of theirs."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = models

    def encode(self, source: Tensor) -> list[Any]:
        return [model.encode(source) for model in self.models]

    def start(self, memory: list[Any], mask: Tensor, *, follow_coverage: bool = False) -> _State:
        return _State([
            model.start(own, mask, follow_coverage=follow_coverage)
            for model, own in zip(self.models, memory, strict=True)])

    def decode_step(self, tokens: Tensor, state: _State, rows: OpenRows) -> list[Any]:
        return [model.decode_step(tokens, own, rows) for model, own in zip(self.models, state.states, strict=True)]

    def log_probabilities(self, decoded: list[Any], some: slice) -> Tensor:
        each = [model.log_probabilities(own, some) for model, own in zip(self.models, decoded, strict=True)]
        return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


class _State:
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
