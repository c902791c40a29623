"""A shortlist learned from pairs of sentences by IBM Model 1."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset

from translator.config.options import MOST_CANDIDATES
from translator.data.cleaning import READ_ROWS
from translator.search.shortlist import Shortlist
from translator.text.tokenizer import PAD_ID

# Pairs of a source and a target piece that stand in one pair of sentences, at most, to learn from: 16 bytes each.
LINKS = 40_000_000
ITERATIONS = 5


def learn_shortlist(pairs: Dataset, source_pieces: int, target_pieces: int, *, joint: bool) -> Shortlist:
    """From tokenised pairs, evenly from all of them where they are very many.

    Candidates are the target pieces of highest probability given the source piece, by IBM Model 1 without its empty word (Brown
    et al. 1993, https://aclanthology.org/J93-2003, section 4.1). `joint`: both sides have one vocabulary, or the target its
    beginning, so that a piece of both is its own first candidate: names are copied.
    """
    keys, links, places, counts = _links(pairs, target_pieces)
    of_source = keys // target_pieces
    probabilities = np.ones(len(keys))
    for _ in range(ITERATIONS):
        expected = np.zeros(len(keys))
        for link, place in zip(links, places, strict=True):
            weights = probabilities[link]
            expected += np.bincount(link, weights / np.bincount(place, weights)[place], len(keys))
        probabilities = expected / np.bincount(of_source, expected)[of_source]
    of_both = joint & (of_source < target_pieces)
    known = torch.from_numpy(np.unique(of_source[of_both]))
    others = ~of_both | (keys % target_pieces != of_source)
    keys, of_source, probabilities = keys[others], of_source[others], probabilities[others]
    order = np.lexsort((-probabilities, of_source))
    rank = np.arange(len(keys)) - np.searchsorted(of_source, np.arange(source_pieces))[of_source]
    rank += of_both[others]  # behind the piece itself
    kept = rank < MOST_CANDIDATES
    candidates = torch.full((source_pieces, MOST_CANDIDATES), PAD_ID)
    candidates[of_source[kept], rank[kept]] = torch.from_numpy(keys[order][kept] % target_pieces)
    candidates[known, 0] = known
    return Shortlist(candidates, torch.from_numpy(counts))


def _links(pairs: Dataset, target_pieces: int) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Which pieces stand in one pair of sentences: source x target_pieces + target of all such, in order, and, a few rows at a
    time, the number of each link's in it and the place of its target piece. And how often each target piece occurs.
    """
    lengths = pairs.select_columns(["source_length", "target_length"]).with_format("numpy")[:]
    every = -(-int(np.dot(lengths["source_length"].astype(np.int64), lengths["target_length"])) // LINKS)
    some = pairs.select(range(0, len(pairs), max(1, every))).select_columns(["source_ids", "target_ids"])
    found, places, counts = [], [], np.zeros(target_pieces, np.int64)
    for rows in some.with_format("numpy").iter(READ_ROWS):
        source, target = list(rows["source_ids"]), list(rows["target_ids"])
        counts += np.bincount(np.concatenate(target), minlength=target_pieces)
        starts = np.cumsum([0, *map(len, target)])
        found.append(np.concatenate([
            np.add.outer(s.astype(np.int64) * target_pieces, t).ravel() for s, t in zip(source, target, strict=True)]))
        places.append(np.concatenate([
            np.tile(np.arange(start, start + len(t), dtype=np.int32), len(s))
            for s, t, start in zip(source, target, starts, strict=False)]))
    keys = np.unique(np.concatenate([np.unique(part) for part in found]))
    return keys, [np.searchsorted(keys, part).astype(np.int32) for part in found], places, counts
