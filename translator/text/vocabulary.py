"""A joint vocabulary in which the pieces that targets use come first, so that they alone are the target's.

Both sides share ids and a table of embeddings, and yet no product or softmax is spent on what no target holds. To segment a
side into none but its own pieces is subword-nmt's advice too (https://github.com/rsennrich/subword-nmt, --vocabulary).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from translator.text.tokenizer import EOS_ID, Tokenizer

ModelProto: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]  # made on import
Piece = ModelProto.SentencePiece

# Texts segmented together.
AT_ONCE = 10_000


def narrow_target(joint: Tokenizer, targets: Iterable[str]) -> tuple[Tokenizer, Tokenizer]:
    """The joint vocabulary in another order, and the beginning of it that segments `targets` as all of it does.

    That also holds all bytes and single characters: what the whole vocabulary can spell, it can. Pieces that targets use often
    stand before rare ones, as `translator.training.sampled_softmax` wants them. Of a unigram model.
    """
    proto = ModelProto.FromString(joint.model)
    used = np.zeros(len(joint), int)
    texts = iter(targets)
    while some := list(islice(texts, AT_ONCE)):
        used += np.bincount(np.concatenate(joint.encode(some)), minlength=len(joint))
    used[: EOS_ID + 1] = used.max() + 1  # the special ones stay first
    kept = (used > 0) | [piece.type == Piece.BYTE or len(piece.piece) == 1 for piece in proto.pieces]
    order = np.lexsort((-used, ~kept))  # stable
    return _of_pieces(proto, order), _of_pieces(proto, order[: kept.sum()])


def is_narrow(source: Tokenizer, target: Tokenizer) -> bool:
    """Whether the target's pieces are the first of the source's, or both are one: imported ones share all and yet are two."""
    own = range(len(target))
    return source is target or (len(target) < len(source) and source.pieces(own) == target.pieces(own))


def _of_pieces(model: Any, numbers: Iterable[int]) -> Tokenizer:
    """With these pieces of a SentencePiece model, in this order."""
    proto = ModelProto()
    proto.CopyFrom(model)
    del proto.pieces[:]
    proto.pieces.extend(model.pieces[number] for number in numbers)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return Tokenizer(proto.SerializeToString())
