"""A lexicon recovers a known dictionary, and links the pieces of a pair in any order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from translator.data.batching import pad
from translator.data.ibm_model_1 import learn_lexicon
from translator.data.lexicon import Lexicon
from translator.text.tokenizer import EOS_ID

PIECES = 40


def translation(piece: int) -> int:
    return (piece * 7) % 29 + 4


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    """Learned from random sentences whose translations are in reverse order, each with a filler that translates nothing."""
    rng = np.random.default_rng(0)
    sources = [[*rng.permutation(np.arange(4, 33))[: rng.integers(2, 9)].tolist(), EOS_ID] for _ in range(400)]
    targets = [[*(translation(piece) for piece in reversed(ids[:-1])), 35, EOS_ID] for ids in sources]
    return learn_lexicon(Dataset.from_dict({
        "source_ids": sources, "target_ids": targets, "source_length": list(map(len, sources)),
        "target_length": list(map(len, targets))}), PIECES)


def test_links_are_those_of_the_known_dictionary(lexicon):
    assert lexicon.links([5, 9, 20, EOS_ID], [*map(translation, (20, 9, 5)), EOS_ID]) == [2, 1, 0]


def test_a_piece_without_evidence_links_to_nothing(lexicon):
    assert lexicon.links([5, 9, EOS_ID], [translation(9), 35, translation(7), EOS_ID]) == [1, None, None]


def test_repeated_pieces_link_in_their_order(lexicon):
    assert lexicon.links([5, 9, 5, EOS_ID], [*map(translation, (5, 9, 5)), EOS_ID]) == [0, 1, 2]


def test_agreement_does_not_depend_on_padding(lexicon):
    alone = lexicon.agreement(torch.tensor([[5, 9, EOS_ID]]), torch.tensor([[translation(9), EOS_ID]]))
    sides = [[5, 9, EOS_ID], [5] * 6], [[translation(9), EOS_ID], [8] * 5]
    together = lexicon.agreement(*map(pad, sides))
    assert torch.allclose(together[0, :2, :3], alone[0])
    assert not together[0, 2:].any()
    assert not together[0, :, 3:].any()
    assert (together >= 0).all()
    assert (together <= 1).all()


def test_attention_decides_where_the_lexicon_knows_nothing(lexicon):
    source, target = torch.tensor([[5, 9, 7, EOS_ID]]), torch.tensor([[translation(9), 38, 39, EOS_ID]])
    attention = torch.tensor([[[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.3, 0.2, 0.3, 0.2], [0.1, 0.1, 0.1, 0.7]]])
    evidence = lexicon.support(attention, source, target)[0]
    assert evidence[:2].argmax(dim=1).tolist() == [1, 2]
    assert not evidence[2].any()
