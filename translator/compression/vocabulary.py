"""Remove the pieces of a vocabulary that no text uses, so that texts are segmented as before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from translator.text.tokenizer import ModelProto, Piece, Tokenizer, Tokenizers

BPE = 2  # SentencePiece's number of the model type
# Pieces that are ordinary parts of words. All others are kept: special ones, tags, placeholders and bytes.
ORDINARY = (Piece.NORMAL, Piece.UNUSED)

Ids = np.ndarray  # of the pieces that stay, in their new order


def keep_used(tokenizers: Tokenizers, uses: Sequence[np.ndarray]) -> tuple[Tokenizers, tuple[Ids, Ids]]:
    """Return smaller tokenizers, and the ids on each side that stay, in their new order. uses: how often each piece occurs.

    Where the target's pieces are the first of the source's, they stay so: both may share embeddings.
    """
    source, target = tokenizers
    if source is target:
        ids = np.flatnonzero(pieces_to_keep(source, uses[0] + uses[1]))
        smaller = source.with_pieces(ids)
        return (smaller, smaller), (ids, ids)
    of_source, of_target = (
        np.flatnonzero(pieces_to_keep(side, of_side)) for side, of_side in zip(tokenizers, uses, strict=True))
    if source.pieces(range(len(source)))[: len(target)] == target.pieces(range(len(target))):
        of_source = np.concatenate([of_target, np.setdiff1d(of_source, of_target)])
    return (source.with_pieces(of_source), target.with_pieces(of_target)), (of_source, of_target)


def pieces_to_keep(tokenizer: Tokenizer, uses: np.ndarray) -> np.ndarray:
    """Return which pieces stay: used ones, single characters and special pieces, and what segments texts as before."""
    model = ModelProto.FromString(tokenizer.model)
    kept = (uses > 0) | [piece.type not in ORDINARY or len(piece.piece) == 1 for piece in model.pieces]
    # The lowest score decides what an unknown character costs, the highest what a placeholder does.
    scores = {i: piece.score for i, piece in enumerate(model.pieces) if piece.type == Piece.NORMAL}
    if scores:
        kept[[min(scores, key=scores.__getitem__), max(scores, key=scores.__getitem__)]] = True
    if model.trainer_spec.model_type == BPE:
        _keep_merged(kept, [piece.piece for piece in model.pieces])
    return kept


def _keep_merged(kept: np.ndarray, pieces: Sequence[str]) -> None:
    """Mark all pieces that may be merged on the way to a kept one. Others never occur in between."""
    number = {piece: i for i, piece in enumerate(pieces)}
    open_pieces = [piece for piece, stays in zip(pieces, kept, strict=True) if stays]
    while open_pieces:
        piece = open_pieces.pop()
        for cut in range(1, len(piece)):
            parts = piece[:cut], piece[cut:]
            if all(part in number for part in parts):
                new = [part for part in parts if not kept[number[part]]]
                kept[[number[part] for part in new]] = True
                open_pieces += new
