"""A joint vocabulary whose first pieces are those that targets use, and a target vocabulary of only these.

Both sides share ids and embeddings, but the output layer spends nothing on pieces that no target holds. subword-nmt too
advises to segment each side into its own pieces only (https://github.com/rsennrich/subword-nmt, --vocabulary).
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

# Texts that are segmented at a time.
AT_ONCE = 10_000


def narrow_target(joint: Tokenizer, targets: Iterable[str]) -> tuple[Tokenizer, Tokenizer]:
    """Return the joint vocabulary, reordered, and the beginning of it that segments `targets` as all of it does.

    The second also holds all bytes and single characters, so it can spell what the whole vocabulary can. Frequent pieces come
    first, as `translator.training.loss.draw` needs them. For unigram models.
    """
    proto = ModelProto.FromString(joint.model)
    used = np.zeros(len(joint), int)
    texts = iter(targets)
    while batch := list(islice(texts, AT_ONCE)):
        used += np.bincount(np.concatenate(joint.encode(batch)), minlength=len(joint))
    used[: EOS_ID + 1] = used.max() + 1  # special ids stay first
    kept = (used > 0) | [piece.type == Piece.BYTE or len(piece.piece) == 1 for piece in proto.pieces]
    order = np.lexsort((-used, ~kept))  # stable
    return _with_pieces(proto, order), _with_pieces(proto, order[: kept.sum()])


def is_narrow(source: Tokenizer, target: Tokenizer) -> bool:
    """Return whether the target's pieces are the source's first ones, or both are one object.

    Imported models may have two equal vocabularies, which are not narrow.
    """
    own = range(len(target))
    return source is target or (len(target) < len(source) and source.pieces(own) == target.pieces(own))


def _with_pieces(model: Any, numbers: Iterable[int]) -> Tokenizer:
    """Return a SentencePiece model with only these of its pieces, in this order."""
    proto = ModelProto()
    proto.CopyFrom(model)
    del proto.pieces[:]
    proto.pieces.extend(model.pieces[number] for number in numbers)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return Tokenizer(proto.SerializeToString())
