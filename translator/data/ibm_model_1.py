"""IBM Model 1: learn from sentence pairs which target pieces translate which source pieces.

Brown et al. 1993, https://aclanthology.org/J93-2003, section 4.1, without the empty word. Shortlists take one direction's
probabilities, a lexicon for word alignment takes both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset

from translator.data.cleaning import READ_ROWS
from translator.data.lexicon import Lexicon

# Most links, each a source and a target piece of one sentence pair, to learn from: 20 bytes each.
LINKS = 40_000_000
# Of these a lexicon needs fewer: some ten seconds of a laptop.
LEXICON_LINKS = 10_000_000
ITERATIONS = 5
# Least probability, in both directions, of the pairs that a lexicon keeps: a tenth of all.
NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class Cooccurrences:
    """Which pieces occur in one pair. By batches of rows, each link has the number of its key and the places of its pieces."""

    keys: np.ndarray  # (K,), sorted: source piece x target_pieces + target piece
    target_pieces: int
    links: list[np.ndarray]
    source_places: list[np.ndarray]
    target_places: list[np.ndarray]
    counts: np.ndarray  # (V,): how often each target piece occurs

    @property
    def sources(self) -> np.ndarray:
        """The source piece of each key: (K,)."""
        return self.keys // self.target_pieces

    @property
    def targets(self) -> np.ndarray:
        """The target piece of each key: (K,)."""
        return self.keys % self.target_pieces


def cooccurrences(pairs: Dataset, target_pieces: int, *, most: int | None = None) -> Cooccurrences:
    """Collect the links of tokenised pairs, of an even selection if there are more than `most` (None: `LINKS`)."""
    lengths = pairs.select_columns(["source_length", "target_length"]).with_format("numpy")[:]
    every = -(-int(np.dot(lengths["source_length"].astype(np.int64), lengths["target_length"])) // (most or LINKS))
    some = pairs.select(range(0, len(pairs), max(1, every))).select_columns(["source_ids", "target_ids"])
    found, source_places, target_places, counts = [], [], [], np.zeros(target_pieces, np.int64)
    for rows in some.with_format("numpy").iter(READ_ROWS):
        source, target = list(rows["source_ids"]), list(rows["target_ids"])
        counts += np.bincount(np.concatenate(target), minlength=target_pieces)
        source_starts, target_starts = (np.cumsum([0, *map(len, side)])[:-1] for side in (source, target))
        found.append(np.concatenate([
            np.add.outer(s.astype(np.int64) * target_pieces, t).ravel() for s, t in zip(source, target, strict=True)]))
        source_places.append(np.concatenate([
            np.repeat(np.arange(start, start + len(s), dtype=np.int32), len(t))
            for s, t, start in zip(source, target, source_starts, strict=True)]))
        target_places.append(np.concatenate([
            np.tile(np.arange(start, start + len(t), dtype=np.int32), len(s))
            for s, t, start in zip(source, target, target_starts, strict=True)]))
    keys = _distinct(np.concatenate([_distinct(part) for part in found]))
    links = [np.searchsorted(keys, part).astype(np.int32) for part in found]
    return Cooccurrences(keys, target_pieces, links, source_places, target_places, counts)


def translation_probabilities(found: Cooccurrences, *, backward: bool = False) -> np.ndarray:
    """Return p(target piece | source piece) of each key, (K,), by expectation maximisation; backward: the other direction."""
    given, places = (found.targets, found.source_places) if backward else (found.sources, found.target_places)
    probabilities = np.ones(len(found.keys))
    for _ in range(ITERATIONS):
        expected = np.zeros(len(found.keys))
        for link, place in zip(found.links, places, strict=True):
            weights = probabilities[link]
            expected += np.bincount(link, weights / np.bincount(place, weights)[place], len(found.keys))
        probabilities = expected / np.bincount(given, expected)[given]
    return probabilities


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Return `np.unique(keys)`, which since NumPy 2.3 takes several times as long, by hashing."""
    ordered = np.sort(keys)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]]


def learn_lexicon(pairs: Dataset, target_pieces: int) -> Lexicon:
    """Learn which pieces translate each other, in both directions. The pairs determine it."""
    found = cooccurrences(pairs, target_pieces, most=LEXICON_LINKS)
    forward, backward = translation_probabilities(found), translation_probabilities(found, backward=True)
    kept = np.minimum(forward, backward) > NEGLIGIBLE
    return Lexicon(
        torch.from_numpy(found.keys[kept]), torch.from_numpy(forward[kept]).float(), torch.from_numpy(backward[kept]).float(),
        target_pieces)
