"""Subword tokens by SentencePiece: train, load, encode, sample, decode, and the special ids."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2

from translator.config.languages import BACK_TRANSLATED, SEPARATOR, is_tag
from translator.config.options import TokenizerConfig
from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError
from translator.text.placeholders import PLACEHOLDER, placeholder
from translator.text.writing_systems import goes_on, is_unspaced

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
WORD_START = "▁"  # how SentencePiece writes the space before a word

ModelProto: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]  # made on import
Piece = ModelProto.SentencePiece


class Tokenizer:
    """One SentencePiece model (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226). Ids of a text end in `EOS_ID`."""

    def __init__(self, model: bytes, tag: str | None = None) -> None:
        """Load a SentencePiece model with the special ids of this project. tag: a piece that every text's ids begin with."""
        self.model = model
        try:
            self._processor = processor = spm.SentencePieceProcessor(model_proto=model)
            pieces = self.pieces(range(len(self)))
        except (RuntimeError, OSError, UnicodeDecodeError) as error:
            raise UserError("not a SentencePiece model") from error
        if (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) != (0, 1, 2, 3):
            raise UserError("a SentencePiece model, but not one of this project: its special ids differ")
        self.tag = tag
        # Pieces from another side's model: they segment nothing, but stand for a character that this model does not know.
        self._foreign = {piece: i for i, piece in enumerate(pieces) if processor.is_unused(i)}
        self.tag_ids = [] if tag is None else [processor.piece_to_id(tag)]
        if UNK_ID in self.tag_ids:
            raise UserError(f"no piece {tag!r} in the vocabulary, which tokenizer.source_tag or tokenizer.target_tag needs")
        self._log_probability = [processor.get_score(i) for i in range(len(self))]
        tags = tuple(filter(is_tag, pieces)) if tag is None else ()
        # In a multilingual model: the tags of its target languages, two or more. Each text begins with one.
        self.tags = tuple(tag for tag in tags if tag not in (BACK_TRANSLATED, SEPARATOR))
        self.separator = processor.piece_to_id(SEPARATOR) if SEPARATOR in tags else None  # of a model that reads context
        self._marks = {*self.tag_ids, *map(processor.piece_to_id, tags)}
        self.placeholders = tuple(piece for piece in pieces if PLACEHOLDER.fullmatch(piece))
        self._unknown = {UNK_ID, *(i for i in range(len(self)) if processor.is_byte(i))}
        self._whole = {*self._marks, *map(processor.piece_to_id, self.placeholders)}  # pieces that are never spelled by others

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, with the tag, if there is one, first and `EOS_ID` last."""
        return [self.tag_ids + ids + [EOS_ID] for ids in self._encode(texts)]

    def encode_phrases(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text as words inside a longer one: no EOS, and no space before unless its script has one."""
        phrases = []
        for text, ids in zip(texts, self._encode(texts), strict=True):
            if is_unspaced(text.lstrip()[:1]):  # drop the space that every text begins with, if the vocabulary allows
                first = self._processor.id_to_piece(ids[0]).removeprefix(WORD_START)
                first_ids = [self._processor.piece_to_id(first)] if first else []
                ids = ids if UNK_ID in first_ids else first_ids + ids[1:]
            phrases.append(ids)
        return phrases

    def goes_on(self, last: int, piece: int) -> bool:
        """Return whether a piece continues the word that the piece `last` ends. Bytes are taken to."""
        before, after = self.pieces([last, piece])
        return goes_on(before, "a" if self._processor.is_byte(piece) else after)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        few = len(texts) < 256  # starting threads takes as long as thirty sentences
        encoded = map(self._processor.encode, texts) if few else self._processor.encode(list(texts))
        return [self._with_foreign(text, ids) for text, ids in zip(texts, encoded, strict=True)]

    def _with_foreign(self, text: str, ids: list[int]) -> list[int]:
        if not self._foreign or UNK_ID not in ids:
            return ids
        return [self._foreign.get(piece, i) if i == UNK_ID else i for piece, i in zip(self.spell(text), ids, strict=True)]

    def sample(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Return ids like `encode`, but of a random segmentation of each text, determined by `seed`.

        Subword regularisation (Kudo 2018, https://arxiv.org/abs/1804.10959, section 3.2): one of the 32 best
        segmentations, with probability proportional to its own to the power `alpha`. Only unigram models rank them.
        """
        # SentencePiece can sample, but mixes the thread's address into its seed: no two processes agree.
        rng = np.random.default_rng(seed)
        return [[*self.tag_ids, *self._sampled(text, alpha, rng), EOS_ID] for text in texts]

    def _sampled(self, text: str, alpha: float, rng: np.random.Generator) -> list[int]:
        candidates = self._processor.nbest_encode(text, nbest_size=32)
        best = candidates[0]
        if self._foreign and UNK_ID in best:  # a piece that no segmentation knows
            return self._with_foreign(text, best)
        if self._whole.intersection(best):
            wholes = self._count_whole(best)
            candidates = [ids for ids in candidates if self._count_whole(ids) == wholes]
        scores = alpha * np.array([sum(self._log_probability[i] for i in ids) for ids in candidates])
        # The largest of scores + Gumbel noise is a draw from their softmax.
        return candidates[int((scores + rng.gumbel(size=len(scores))).argmax())]

    def _count_whole(self, ids: Sequence[int]) -> int:
        return sum(i in self._whole for i in ids)

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Return the text of each sequence, without special ids."""
        return [self._processor.decode([i for i in sequence if i not in (PAD_ID, BOS_ID, EOS_ID)]) for sequence in ids]

    def decode_pieces(self, pieces: Sequence[str]) -> str:
        """Return the text of pieces, which need not be in the vocabulary."""
        return str(self._processor.decode_pieces(list(pieces)))

    def spell(self, text: str) -> list[str]:
        """Return the pieces of a text as strings, also pieces that the vocabulary lacks."""
        return list(self._processor.encode(text, out_type=str))

    @property
    def has_tags(self) -> bool:
        return bool(self._marks)

    def count_tags(self, ids: Sequence[int]) -> int:
        """Return how many of a text's ids come before its first word: its context, or a tag, before which a space may stand."""
        if self.separator in ids:
            return len(ids) - ids[::-1].index(self.separator)
        return next((place + 1 for place, i in enumerate(ids[:2]) if i in self._marks), 0)

    def spans(self, text: str) -> list[str]:
        """Return the part of the text that each piece stands for, often with the space before: joined, they are the text."""
        data = text.encode()
        pieces = self._processor.encode(text, return_type="proto").pieces
        bounds = [0, *(piece.begin for piece in pieces[1:]), len(data)]
        return [data[first:last].decode() for first, last in itertools.pairwise(bounds)]

    def unknown_spans(self, text: str) -> list[tuple[int, int]]:
        """Return start and end, in characters, of what the vocabulary lacks: spelled in bytes, or unknown."""
        if self._unknown.isdisjoint(itertools.chain.from_iterable(self._encode([text]))):
            return []
        data = text.encode()
        pieces = self._processor.encode(text, return_type="proto").pieces
        return [
            (len(data[: piece.begin].decode()), len(data[: piece.end].decode()))
            for piece in pieces if piece.id in self._unknown and piece.end > piece.begin]

    def cost(self, word: str) -> float:
        """Return how rare a word is: the negative log-probability of its pieces (unigram), or their number and rank (bpe)."""
        ids = self._processor.encode(word)
        if not self._unknown.isdisjoint(ids):
            return math.inf
        total = -sum(self._log_probability[i] for i in ids)
        return len(ids) + total / (len(ids) + 1) / len(self) if self._merges else total

    @cached_property
    def _merges(self) -> bool:
        return bool(ModelProto.FromString(self.model).trainer_spec.model_type == 2)

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """Return what each id adds to the text that `decode` returns. The last of a character's bytes adds the character."""
        return [piece.surface for piece in self._processor.decode(list(ids), return_type="proto").pieces]

    def surface(self, i: int) -> str:
        """Return the text of one id within a sentence, with the space before it; empty for a byte or a special id."""
        special = self._processor.is_byte(i) or self._processor.is_control(i) or self._processor.is_unknown(i)
        return "" if special else str(self._processor.id_to_piece(i)).replace(WORD_START, " ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(i) for i in ids]

    def ids_of(self, pieces: Sequence[str]) -> list[int]:
        """Return the id of each piece: `UNK_ID` for those the vocabulary lacks."""
        return [self._processor.piece_to_id(piece) for piece in pieces]

    def with_pieces(self, ids: Iterable[int]) -> Tokenizer:
        """Return a tokenizer with only these of its pieces, in this order."""
        model = ModelProto.FromString(self.model)
        pieces = [model.pieces[i] for i in ids]
        del model.pieces[:]
        model.pieces.extend(pieces)
        model.trainer_spec.vocab_size = len(pieces)
        return Tokenizer(model.SerializeToString(), self.tag)

    def same_as(self, other: Tokenizer) -> bool:
        """Return whether ids mean the same in another tokenizer, even if its bytes record another training."""
        mine, others = ((t.pieces(range(len(t))), t._log_probability, t.tag_ids) for t in (self, other))
        return mine == others

    def save(self, path: Path) -> None:
        path.write_bytes(self.model)

    @classmethod
    def load(cls, path: Path, tag: str | None = None) -> Tokenizer:
        """Load a SentencePiece model; UserError if the file is missing or not a model."""
        try:
            return cls(read_plain(path), tag)
        except (OSError, UserError) as error:
            raise UserError(f"{path}: {error}") from error


Tokenizers = tuple[Tokenizer, Tokenizer]  # of sources and targets


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, symbols: Sequence[str] = ()) -> Tokenizer:
    """Train a SentencePiece model. Few texts give fewer pieces than `tokenizer.vocab_size`.

    symbols: strings that become one piece each, as do the placeholders of `config`. UserError where the vocabulary has no
    room for the texts' characters.
    """
    model, reserved = io.BytesIO(), [*symbols, *map(placeholder, range(1, config.placeholders + 1))]
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type=config.model_type,
            vocab_size=config.vocab_size, hard_vocab_limit=False, character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback, split_digits=config.split_digits, normalization_rule_name="nmt_nfkc",
            user_defined_symbols=reserved, pad_id=PAD_ID, unk_id=UNK_ID, bos_id=BOS_ID, eos_id=EOS_ID,
            num_threads=2, minloglevel=2, max_sentence_length=2**30)  # by default, texts of 4,192 bytes are dropped silently
    except RuntimeError as error:
        raise UserError(f"tokenizer.vocab_size={config.vocab_size}: SentencePiece cannot train on this text: {error}. "
                        "Try another size") from error
    return Tokenizer(model.getvalue())


def narrow_target(joint: Tokenizer, targets: Iterable[str]) -> Tokenizers:
    """Return the joint vocabulary, reordered, and the beginning of it that segments `targets` as all of it does.

    Both sides share ids and embeddings, but the output layer spends nothing on pieces that no target holds. The second also
    holds all bytes, single characters and placeholders, so it can spell what the whole vocabulary can. Frequent pieces come
    first, as `translator.training.loss.draw` needs them. For unigram models. subword-nmt too advises to segment each side
    into its own pieces only (https://github.com/rsennrich/subword-nmt, --vocabulary).
    """
    proto = ModelProto.FromString(joint.model)
    used = np.zeros(len(joint), int)
    texts = iter(targets)
    while batch := list(itertools.islice(texts, 10_000)):
        used += np.bincount(np.concatenate(joint.encode(batch)), minlength=len(joint))
    used[: EOS_ID + 1] = used.max() + 1  # special ids stay first
    kept = (used > 0) | [
        piece.type == Piece.BYTE or len(piece.piece) == 1 or piece.piece in joint.placeholders for piece in proto.pieces]
    order = np.lexsort((-used, ~kept))  # stable
    return joint.with_pieces(order), joint.with_pieces(order[: kept.sum()])


def is_narrow(source: Tokenizer, target: Tokenizer) -> bool:
    """Return whether the target's pieces are the source's first ones, or both are one object, not two equal vocabularies."""
    own = range(len(target))
    return source is target or (len(target) < len(source) and source.pieces(own) == target.pieces(own))
