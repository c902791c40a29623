"""Learn a shortlist from sentence pairs by IBM Model 1."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset

from translator.config.commands import ShortlistConfig
from translator.config.options import MOST_CANDIDATES
from translator.data.ibm_model_1 import cooccurrences, translation_probabilities
from translator.data.preparation import prepare
from translator.inference.teaching import training_splits
from translator.runs.finding import chosen_runs
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import require_writable
from translator.runtime.errors import UserError
from translator.search.shortlist import Shortlist
from translator.text.tokenizer import PAD_ID


def shortlist_run(config: ShortlistConfig) -> None:
    """Learn a run's shortlist, and say where it is."""
    folder = RunFolder(*chosen_runs(config.run, config.runs))
    write_shortlist(folder)
    print(f"written to {folder.shortlist_file}; use it with search.shortlist=20")


def write_shortlist(folder: RunFolder) -> None:
    """Learn a run's shortlist from its training data into its folder."""
    require_writable(folder.path)
    trained, tokenizers = folder.load_config(), folder.load_tokenizers()
    if "splits" not in folder.load_report():
        raise UserError(
            f"{folder.path}: its data_report.json has no training data, as after an import. Fine-tune it with init= first.")
    given = None if trained.own_vocabulary else tokenizers  # the cache then has the tokenised data of its training
    data = folder.load_data()
    corpus = prepare(
        data, trained.tokenizer, max_tokens=trained.longest_pair(), tokenizers=given,
        splits=training_splits(data, "auto"))
    folder.require_same_data((corpus.source_tokenizer, corpus.target_tokenizer), corpus.report)
    source, target = map(len, tokenizers)
    folder.save_shortlist(learn_shortlist(corpus.train, source, target, joint=trained.tokenizer.joint))


def learn_shortlist(pairs: Dataset, source_pieces: int, target_pieces: int, *, joint: bool) -> Shortlist:
    """Learn from tokenised pairs, from an even selection if there are very many.

    Candidates are the target pieces of highest probability given the source piece. `joint`: both sides share one vocabulary, or
    its beginning, so that a shared piece is its own first candidate, as names are copied.
    """
    found = cooccurrences(pairs, target_pieces)
    keys, of_source, probabilities = found.keys, found.sources, translation_probabilities(found)
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
    return Shortlist(candidates, torch.from_numpy(found.counts))

