"""A vocabulary without unused pieces segments the texts that use it as before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.configurations import tokenizer_config
from tests.support.corpora import PAIRS
from translator.compression.vocabulary import keep_used
from translator.text.tokenizer import Tokenizer, is_narrow, narrow_target, train_tokenizer

TAG = ">>de<<"
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))
USED = slice(0, 4)


def uses(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    return np.bincount(np.concatenate(tokenizer.encode(texts)), minlength=len(tokenizer))


def trained(texts: list[str], **changes: object) -> Tokenizer:
    return train_tokenizer(texts, tokenizer_config(placeholders=1, **changes), [TAG])


def pairs_of_tokenizers(kind: str) -> tuple[Tokenizer, Tokenizer]:
    if kind == "separate":
        return trained(SOURCES), trained(TARGETS)
    joint = trained(SOURCES + TARGETS, model_type="bpe" if kind == "bpe" else "unigram", byte_fallback=kind != "no bytes")
    return narrow_target(joint, TARGETS) if kind == "narrow" else (joint, joint)


@pytest.mark.parametrize("kind", ["unigram", "no bytes", "bpe", "narrow", "separate"])
def test_used_texts_keep_their_pieces_under_new_ids(kind):
    tokenizers = pairs_of_tokenizers(kind)
    texts = SOURCES[USED], TARGETS[USED]
    smaller, ids = keep_used(tokenizers, [uses(*side) for side in zip(tokenizers, texts, strict=True)])
    for before, after, kept, of_side in zip(tokenizers, smaller, ids, texts, strict=True):
        assert len(after) == len(kept) < len(before)
        assert [kept[of_text].tolist() for of_text in after.encode(of_side)] == before.encode(of_side)
        assert kept[:4].tolist() == [0, 1, 2, 3]
        assert after.tags == before.tags
        assert after.placeholders == before.placeholders
        assert after.decode(after.encode(["Xylophon 7"])) == before.decode(before.encode(["Xylophon 7"]))
    assert (smaller[0] is smaller[1]) == (tokenizers[0] is tokenizers[1])
    assert is_narrow(*smaller) == is_narrow(*tokenizers)
