"""What is asked of a translation, and what becomes of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from translator.search import Hypothesis
from translator.search.hypothesis import Ids
from translator.text.writing_systems import rejoined

# Why a text is refused for which a model, which may have learned little, finds no words.
ONLY_EMPTY = "the model finds only an empty translation; not translated"


@dataclass(frozen=True)
class Request:
    """A text, and what its translation must begin with and hold, besides what the options of the search say."""

    text: str | bytes  # bytes are read as UTF-8
    prefix: str | None = None  # None: that of the options
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """A translation to rate."""

    text: str
    pieces: Sequence[str] = ()  # that spelled it when it was found, EOS after each sentence


def decoded(text: str | bytes) -> str:
    """ValueError, which says where, for bytes that are not UTF-8, and for half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        return text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        unit, start = ("byte" if isinstance(text, bytes) else "character"), getattr(error, "start", 0)
        raise ValueError(f"not UTF-8 at {unit} {start + 1:,}") from error


@dataclass(frozen=True)
class Translation:
    """What became of one text: its best translation first, or the reason why it was refused."""

    texts: tuple[str, ...] = ("",)
    hypotheses: tuple[Hypothesis, ...] = ()
    refused: str = ""
    sentences: int = 1  # that the text was split into
    pairs: tuple[tuple[Ids, Ids], ...] = ()  # the ids of each sentence and of its best translation, EOS last
    warnings: tuple[str, ...] = ()  # signs that it lacks a part of its source

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def hit_limit(self) -> bool:
        return any(hypothesis.hit_limit for hypothesis in self.hypotheses[:1])


def join(sentences: Sequence[Translation]) -> Translation:
    """The translation of a text from those of its sentences: the best of each, then the second best, and so on."""
    if len(sentences) == 1:
        return sentences[0]
    refused = next((sentence.refused for sentence in sentences if sentence.refused), "")
    if refused:
        return Translation(refused=refused)
    texts, hypotheses = [], []
    for rank in range(max(len(sentence.texts) for sentence in sentences)):
        texts.append(rejoined([sentence.texts[min(rank, len(sentence.texts) - 1)] for sentence in sentences]))
        hypotheses.append(_in_a_row([
            sentence.hypotheses[min(rank, len(sentence.hypotheses) - 1)] for sentence in sentences if sentence.hypotheses]))
    pairs, warnings = (
        tuple(itertools.chain.from_iterable(each)) for each in zip(*((s.pairs, s.warnings) for s in sentences), strict=True))
    return Translation(tuple(texts), tuple(hypotheses), sentences=len(sentences), pairs=pairs, warnings=warnings)


def _in_a_row(hypotheses: list[Hypothesis]) -> Hypothesis:
    return Hypothesis(
        tuple(i for hypothesis in hypotheses for i in hypothesis.ids), sum(h.log_probability for h in hypotheses),
        sum(h.score for h in hypotheses), any(h.hit_limit for h in hypotheses))
