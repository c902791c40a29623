"""Subword tokens by SentencePiece: train, load, encode, sample, decode, and the special ids."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece as spm

from translator.config.languages import is_tag
from translator.config.options import TokenizerConfig
from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError
from translator.text.writing_systems import goes_on, is_unspaced

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
# How SentencePiece writes the space before a word.
WORD_START = "▁"

# Segmentations of a text that subword regularisation chooses among.
SAMPLED_BEST = 32
# Bytes of a text that a vocabulary is learned from; SentencePiece leaves out those of more than 4,192 without a word.
LONGEST_TEXT = 2**30
# Texts in a list for which SentencePiece's threads pay: starting them takes as long as thirty sentences.
THREADS_PAY_FROM = 256


class Tokenizer:
    """One SentencePiece model. Text becomes ids that end in `EOS_ID`; ids become text again.

    Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226.
    """

    def __init__(self, model: bytes, tag: str | None = None) -> None:
        """`model`: the bytes of a SentencePiece model whose special ids are ours; UserError otherwise.

        `tag`: the piece that every text's ids begin with, such as the language tag of a multilingual model.
        """
        self.model = model
        try:
            self._processor = processor = spm.SentencePieceProcessor(model_proto=model)
            pieces = self.pieces(range(len(self)))
        except UnicodeDecodeError as error:
            raise UserError("a SentencePiece model with a piece that is not UTF-8") from error
        except (RuntimeError, OSError) as error:
            raise UserError("not a SentencePiece model") from error
        if (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) != (0, 1, 2, 3):
            raise UserError("a SentencePiece model, but not one of this project: its special ids differ")
        # Pieces that another side's model brought in: they segment nothing, and yet stand for a character unknown here.
        self._foreign = {piece: i for i, piece in enumerate(pieces) if processor.is_unused(i)}
        self.tag_ids = [] if tag is None else [processor.piece_to_id(tag)]
        if UNK_ID in self.tag_ids:
            raise UserError(f"no piece {tag!r} in the vocabulary, as tokenizer.source_tag or tokenizer.target_tag wants one")
        self._log_probability = [processor.get_score(i) for i in range(len(self))]
        # Of a model of several languages: the tags of those that it translates to, for each text to choose from.
        self.tags = tuple(filter(is_tag, pieces)) if tag is None else ()
        self._marks = {*self.tag_ids, *map(processor.piece_to_id, self.tags)}

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, the tag first, if there is one, and `EOS_ID` last."""
        return [self.tag_ids + ids + [EOS_ID] for ids in self._encode(texts)]

    def encode_phrases(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text as words of a longer one: nothing behind, and before them but the space that their script has."""
        return [
            self._inside(ids) if is_unspaced(text.lstrip()[:1]) else ids
            for text, ids in zip(texts, self._encode(texts), strict=True)]

    def goes_on(self, last: int, piece: int) -> bool:
        """Whether a piece goes on with the word that the one before it ends; one of a byte is taken to."""
        before, after = self.pieces([last, piece])
        return goes_on(before, "a" if self._processor.is_byte(piece) else after)

    def _inside(self, ids: list[int]) -> list[int]:
        """Without the space that every text begins with, where the vocabulary allows."""
        first = self._processor.id_to_piece(ids[0]).removeprefix(WORD_START)
        known = [self._processor.piece_to_id(first)] if first else []
        return ids if UNK_ID in known else known + ids[1:]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if len(texts) < THREADS_PAY_FROM:
            return [self._recognised(text, self._processor.encode(text)) for text in texts]
        return [
            self._recognised(text, ids) for text, ids in zip(texts, self._processor.encode(list(texts)), strict=True)]

    def _recognised(self, text: str, ids: list[int]) -> list[int]:
        if not self._foreign or UNK_ID not in ids:
            return ids
        spelled = self._processor.encode(text, out_type=str)
        return [self._foreign.get(piece, i) if i == UNK_ID else i for piece, i in zip(spelled, ids, strict=True)]

    def sample(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Like `encode`, with a random segmentation of each text: a function of `seed` alone.

        Subword regularisation (Kudo 2018, https://arxiv.org/abs/1804.10959, section 3.2): one of the `SAMPLED_BEST` best
        segmentations, with probability proportional to its own to the power `alpha`. Unigram models alone rank them.
        """
        # SentencePiece can sample by itself, but mixes the thread's address into its seed: no two processes agree.
        rng = np.random.default_rng(seed)
        return [[*self.tag_ids, *self._sampled(text, alpha, rng), EOS_ID] for text in texts]

    def _sampled(self, text: str, alpha: float, rng: np.random.Generator) -> list[int]:
        candidates = self._processor.nbest_encode(text, nbest_size=SAMPLED_BEST)
        best = candidates[0]
        if self._foreign and UNK_ID in best:  # a piece that no segmentation knows
            return self._recognised(text, best)
        if self._marks:  # a tag is one piece, never its letters
            candidates = [ids for ids in candidates if self.count_tags(ids) == self.count_tags(best)]
        scores = alpha * np.array([sum(self._log_probability[i] for i in ids) for ids in candidates])
        # The largest of scores + Gumbel noise is a draw from their softmax.
        return candidates[int((scores + rng.gumbel(size=len(scores))).argmax())]

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """The text of each sequence; special ids leave no trace."""
        return [self._processor.decode([i for i in sequence if i not in (PAD_ID, BOS_ID, EOS_ID)]) for sequence in ids]

    def decode_pieces(self, pieces: Sequence[str]) -> str:
        """The text of pieces, of which some need not be in the vocabulary."""
        return str(self._processor.decode_pieces(list(pieces)))

    def spell(self, text: str) -> list[str]:
        """The pieces of a text as it spells them, where `pieces` has but a mark for what the vocabulary lacks."""
        return list(self._processor.encode(text, out_type=str))

    @property
    def has_tags(self) -> bool:
        """Whether there are texts that begin with a tag."""
        return bool(self._marks)

    def count_tags(self, ids: Sequence[int]) -> int:
        """How many of a text's ids come before its first word: those up to a tag, before which a space may stand."""
        return next((place + 1 for place, i in enumerate(ids[:2]) if i in self._marks), 0)

    def spans(self, text: str) -> list[str]:
        """What each piece of a text stands for in it, often with the space before: put together they are the text again."""
        data = text.encode()
        pieces = self._processor.encode(text, return_type="proto").pieces
        bounds = [0, *(piece.begin for piece in pieces[1:]), len(data)]
        return [data[first:last].decode() for first, last in itertools.pairwise(bounds)]

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text: put together they are what `decode` gives. Of a character's bytes the last adds it."""
        return [piece.surface for piece in self._processor.decode(list(ids), return_type="proto").pieces]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each id as the piece a person can read."""
        return [self._processor.id_to_piece(i) for i in ids]

    def ids_of(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of pieces: `UNK_ID` for those the vocabulary lacks."""
        return [self._processor.piece_to_id(piece) for piece in pieces]

    def same_as(self, other: Tokenizer) -> bool:
        """Whether its ids mean what they mean in another: their bytes also tell how each was trained, which may differ."""
        mine, others = ((t.pieces(range(len(t))), t._log_probability, t.tag_ids) for t in (self, other))
        return mine == others

    def save(self, path: Path) -> None:
        path.write_bytes(self.model)

    @classmethod
    def load(cls, path: Path, tag: str | None = None) -> Tokenizer:
        try:
            return cls(read_plain(path), tag)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, symbols: Sequence[str] = ()) -> Tokenizer:
    """Train a SentencePiece model on `texts`, each of `symbols` a piece of its own; few texts have fewer pieces to give.

    UserError where `tokenizer.vocab_size` leaves no room for their characters.
    """
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type=config.model_type,
            vocab_size=config.vocab_size, hard_vocab_limit=False, character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback, normalization_rule_name="nmt_nfkc",
            user_defined_symbols=list(symbols),
            pad_id=PAD_ID, unk_id=UNK_ID, bos_id=BOS_ID, eos_id=EOS_ID,
            num_threads=2, minloglevel=2, max_sentence_length=LONGEST_TEXT)
    except RuntimeError as error:
        raise UserError(
            f"tokenizer.vocab_size={config.vocab_size} does not suit this training text; "
            f"SentencePiece says: {error}") from error
    return Tokenizer(model.getvalue())
