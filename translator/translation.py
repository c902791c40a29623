"""What is asked of a translation, and what becomes of it (floor 4)."""

from __future__ import annotations

from dataclasses import dataclass

from translator.search import Hypothesis


@dataclass(frozen=True)
class Request:
    """A text, and what its translation must begin with and hold, besides what the options of the search say."""

    text: str | bytes  # bytes are read as UTF-8
    prefix: str = ""
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Translation:
    """What became of one text: its best translation first, or the reason why it was refused."""

    texts: tuple[str, ...] = ("",)
    hypotheses: tuple[Hypothesis, ...] = ()
    refused: str = ""
    sentences: int = 1  # that the text was split into

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def hit_limit(self) -> bool:
        return any(hypothesis.hit_limit for hypothesis in self.hypotheses[:1])


@dataclass(frozen=True)
class Details:
    """A translation token by token, and which words render which."""

    pieces: tuple[str, ...]  # EOS last
    log_probabilities: tuple[float, ...]
    score: float
    alignment: tuple[tuple[int, int], ...]  # numbers of source and target words, from 0


@dataclass(frozen=True)
class Unit:
    """A sentence to search for."""

    ids: list[int]  # of its tag too, if it has one
    text: str
    prefix: list[int]
    required: tuple[str, ...]


def join(sentences: list[Translation]) -> Translation:
    """The translation of a text from those of its sentences: of several, the best of each."""
    if len(sentences) == 1:
        return sentences[0]
    refused = next((sentence.refused for sentence in sentences if sentence.refused), "")
    if refused:
        return Translation(refused=refused)
    best = [sentence.hypotheses[0] for sentence in sentences if sentence.hypotheses]
    whole = Hypothesis(
        tuple(i for hypothesis in best for i in hypothesis.ids), sum(h.log_probability for h in best),
        sum(h.score for h in best), any(h.hit_limit for h in best))
    return Translation((" ".join(filter(None, (s.text for s in sentences))),), (whole,), sentences=len(sentences))
