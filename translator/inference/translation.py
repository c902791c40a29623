"""A request for a translation, and its result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from translator.search import Hypothesis
from translator.search.hypothesis import Ids
from translator.text.writing_systems import rejoined

ONLY_EMPTY = "the model finds only an empty translation; not translated"


@dataclass(frozen=True)
class Request:
    """A text, with a prefix and phrases of its own for its translation."""

    text: str | bytes  # bytes are read as UTF-8
    prefix: str | None = None  # None: search.prefix
    required: tuple[str, ...] = ()  # besides search.required


@dataclass(frozen=True)
class Given:
    """A translation to rate."""

    text: str
    pieces: Sequence[str] = ()  # of the output that spelled it, EOS after each sentence


def decoded(text: str | bytes) -> str:
    """Decode UTF-8; ValueError with the place for other bytes, and for half of a surrogate pair in a text."""
    try:
        return text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        unit, start = ("byte" if isinstance(text, bytes) else "character"), getattr(error, "start", 0)
        raise ValueError(f"not UTF-8 at {unit} {start + 1:,}") from error


@dataclass(frozen=True)
class Translation:
    """The translations of a text, best first, or the reason why it was refused."""

    texts: tuple[str, ...] = ("",)
    hypotheses: tuple[Hypothesis, ...] = ()
    refused: str = ""
    sentences: int = 1  # that the text was split into
    pairs: tuple[tuple[Ids, Ids], ...] = ()  # the ids of each sentence and of its best translation, EOS last
    warnings: tuple[str, ...] = ()  # signs that it lacks part of its source

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def hit_limit(self) -> bool:
        return any(hypothesis.hit_limit for hypothesis in self.hypotheses[:1])


def join(sentences: Sequence[Translation]) -> Translation:
    """Join the translations of a text's sentences: the best of each, then the second best of each, and so on."""
    if len(sentences) == 1:
        return sentences[0]
    refused = next((sentence.refused for sentence in sentences if sentence.refused), "")
    if refused:
        return Translation(refused=refused)
    texts, hypotheses = [], []
    for rank in range(max(len(sentence.texts) for sentence in sentences)):
        texts.append(rejoined([sentence.texts[min(rank, len(sentence.texts) - 1)] for sentence in sentences]))
        hypotheses.append(_sum([
            sentence.hypotheses[min(rank, len(sentence.hypotheses) - 1)] for sentence in sentences if sentence.hypotheses]))
    pairs, warnings = (
        tuple(itertools.chain.from_iterable(each)) for each in zip(*((s.pairs, s.warnings) for s in sentences), strict=True))
    return Translation(tuple(texts), tuple(hypotheses), sentences=len(sentences), pairs=pairs, warnings=warnings)


def _sum(hypotheses: list[Hypothesis]) -> Hypothesis:
    return Hypothesis(
        tuple(i for hypothesis in hypotheses for i in hypothesis.ids), sum(h.log_probability for h in hypotheses),
        sum(h.score for h in hypotheses), any(h.hit_limit for h in hypotheses))
