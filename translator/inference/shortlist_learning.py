"""Learn a shortlist from sentence pairs by IBM Model 1."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset

from translator.config.options import MOST_CANDIDATES, DataConfig
from translator.data.cleaning import READ_ROWS
from translator.data.preparation import prepare
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import require_writable
from translator.runtime.errors import UserError
from translator.search.shortlist import Shortlist
from translator.text.tokenizer import PAD_ID

# Most links, each a source and a target piece of one sentence pair, to learn from: 16 bytes each.
LINKS = 40_000_000
ITERATIONS = 5


def write_shortlist(folder: RunFolder, data: DataConfig) -> None:
    """Learn a run's shortlist from its training data into its folder."""
    require_writable(folder.path)
    config, tokenizers = folder.load_config(), folder.load_tokenizers()
    if "splits" not in folder.load_report():
        raise UserError(
            f"{folder.path}: its data_report.json has no training data, as after an import. Fine-tune it with init= first.")
    own_vocabulary = config.init is None  # then the cache has the tokenised data of its training
    corpus = prepare(
        data, config.tokenizer, max_tokens=config.longest_pair(), tokenizers=None if own_vocabulary else tokenizers)
    folder.require_same_data((corpus.source_tokenizer, corpus.target_tokenizer), corpus.report)
    source, target = map(len, tokenizers)
    folder.save_shortlist(learn_shortlist(corpus.train, source, target, joint=config.tokenizer.joint))


def learn_shortlist(pairs: Dataset, source_pieces: int, target_pieces: int, *, joint: bool) -> Shortlist:
    """Learn from tokenised pairs, from an even selection if there are very many.

    Candidates are the target pieces of highest probability given the source piece, by IBM Model 1 without its empty word (Brown
    et al. 1993, https://aclanthology.org/J93-2003, section 4.1). `joint`: both sides share one vocabulary, or its beginning, so
    that a shared piece is its own first candidate, as names are copied.
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
    rank += of_both[others]  # after the piece itself
    kept = rank < MOST_CANDIDATES
    candidates = torch.full((source_pieces, MOST_CANDIDATES), PAD_ID)
    candidates[of_source[kept], rank[kept]] = torch.from_numpy(keys[order][kept] % target_pieces)
    candidates[known, 0] = known
    return Shortlist(candidates, torch.from_numpy(counts))


def _links(pairs: Dataset, target_pieces: int) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Return the keys of all links (source x target_pieces + target), sorted; by batches of rows the number of each link's key
    and the place of its target piece; and how often each target piece occurs.
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
