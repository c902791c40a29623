"""Renumber SentencePiece models by the ids of a separate vocabulary file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from translator.runtime.errors import UserError
from translator.text.vocabulary import ModelProto, Piece

# Pieces that segment text.
SEGMENTING = (Piece.NORMAL, Piece.USER_DEFINED, Piece.BYTE)
# Special pieces in the order of their ids here. The one that starts an output is not called <s>: that may be another piece.
SPECIAL = {"<pad>": Piece.CONTROL, "<unk>": Piece.UNKNOWN, "<start>": Piece.CONTROL, "</s>": Piece.CONTROL}

# Pieces in the order of ids, each with its row in the other model's embeddings.
Vocabulary = dict[str, int]


def arrange(names: Mapping[str, int], size: int, special: Sequence[int], models: Sequence[bytes]) -> Vocabulary:
    """Return the vocabulary of embeddings with `size` rows. `names`: the row of each piece that has one.

    `special`: the rows of padding, of unknown pieces, of the start and of the end of an output. A piece of the SentencePiece
    `models` without a row takes that of unknown pieces.
    """
    by_row = {row: piece for piece, row in names.items()}
    if max(by_row) >= size:
        raise UserError(f"its vocabulary names row {max(by_row):,}, but its embeddings have {size:,} rows")
    vocabulary = dict(zip(SPECIAL, special, strict=True))
    vocabulary |= {by_row.get(row, f"<row {row}>"): row for row in range(size) if row not in special}
    for model in models:
        for piece in ModelProto.FromString(model).pieces:
            if piece.type in SEGMENTING:
                vocabulary.setdefault(piece.piece, special[1])
    return vocabulary


def renumber(model: bytes, vocabulary: Vocabulary, marks: Collection[str]) -> bytes:
    """Return a SentencePiece model that segments as `model` does, with the ids of the vocabulary.

    Pieces that `model` lacks segment nothing. `marks`: those that are no text either.
    """
    proto = ModelProto.FromString(model)
    own = {piece.piece: piece for piece in proto.pieces if piece.type in SEGMENTING}
    last = min((piece.score for piece in own.values()), default=0.0) - 1  # BPE merges into unused pieces too: do so last

    def renumbered(name: str) -> Any:
        if name in SPECIAL:
            return Piece(piece=name, score=0, type=SPECIAL[name])
        return own.get(name) or Piece(piece=name, score=last, type=Piece.CONTROL if name in marks else Piece.UNUSED)

    pieces = [renumbered(name) for name in vocabulary]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    trainer = proto.trainer_spec
    trainer.vocab_size = len(pieces)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(len(SPECIAL))
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = SPECIAL
    return proto.SerializeToString()


def segmentation(model: bytes) -> dict[str, Any]:
    """Return the options of conf/tokenizer that say how a SentencePiece model segments."""
    trainer = ModelProto.FromString(model).trainer_spec
    return {"model_type": trainer.ModelType.Name(trainer.model_type).lower(), "byte_fallback": trainer.byte_fallback}
