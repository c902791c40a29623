"""Which training pairs an epoch has, where several corpora are mixed by shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from translator.config.corpora import apportioned, corpora_of
from translator.config.data import DataConfig
from translator.config.synthetic import BACK

MIXING = 4  # purpose of seeds


def weights_of(config: DataConfig, sections: Mapping[str, range]) -> dict[str, float]:
    """Return the weights of the corpora in a table by the options of the data; none where every pair comes once an epoch."""
    if config.temperature is not None:  # Arivazhagan et al. 2019, https://arxiv.org/abs/1907.05019, section 3.2
        return {name: len(rows) ** (1 / config.temperature) for name, rows in sections.items()}
    weights = {corpus.name: corpus.weight for corpus in corpora_of(config) if corpus.weight is not None}
    if weights and BACK in sections:
        share = config.monolingual_share
        weights[BACK] = sum(weights.values()) * share / (1 - share)
    return weights


@dataclass(frozen=True)
class Mix:
    """Shares of the corpora that a table holds one after the other.

    The size of an epoch is the sum of the corpora with a share. Each corpus has its share of these pairs, in whole pairs. It is
    walked in random order, pass after pass, over all epochs: none of its pairs comes again before all others have come. The
    arguments determine the pairs of any epoch.
    """

    sections: Mapping[str, range]  # the rows of each corpus
    weights: Mapping[str, float]  # of the corpora that have a share

    def counts(self) -> dict[str, int]:
        """Return the number of pairs of each corpus in an epoch."""
        total = sum(len(self.sections[name]) for name in self.weights)
        return dict(zip(self.weights, apportioned(total, [*self.weights.values()]), strict=True))

    def __str__(self) -> str:
        total = sum(self.weights.values())
        return ", ".join(f"{name} {100 * weight / total:.1f} %" for name, weight in self.weights.items())

    def rows(self, epoch: int, seed: int) -> np.ndarray:
        """Return the rows of an epoch, corpus after corpus; a row may come several times."""
        places = {name: number for number, name in enumerate(self.sections)}
        return np.concatenate([
            _walk(len(self.sections[name]), epoch * count, count, (seed, MIXING, places[name])) + self.sections[name].start
            for name, count in self.counts().items()])


def _walk(size: int, start: int, count: int, seed: tuple[int, ...]) -> np.ndarray:
    """Return places `start` to `start + count` of an endless walk through `size` rows in a new random order each pass."""
    first, last = start // size, (start + count - 1) // size
    passes = [np.random.default_rng((*seed, number)).permutation(size) for number in range(first, last + 1)]
    return np.concatenate([*passes, np.empty(0, np.int64)])[start - first * size :][:count]
