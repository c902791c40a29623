"""A request for a translation, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from translator.inference.terminology import Terminology
from translator.search import Hypothesis
from translator.search.hypothesis import Ids
from translator.text.markup import Markup
from translator.text.surface_form import SurfaceForm

ONLY_EMPTY = "the model finds only an empty translation; not translated"


@dataclass(frozen=True)
class Request:
    """A text, with a prefix, phrases and terms of its own for its translation."""

    text: str | bytes  # bytes are read as UTF-8
    prefix: str | None = None  # None: search.prefix
    required: tuple[str, ...] = ()  # besides search.required
    markup: Markup | None = None  # the tags of the text
    terminology: Terminology | None = None  # before the one of search.terminology
    context: str = ""  # the sentences before the text, each with a separator behind it


@dataclass(frozen=True)
class Given:
    """A translation to rate."""

    text: str
    pieces: Sequence[str] = ()  # of the output that spelled it, EOS after each sentence


class Refusal(ValueError):
    """Why a text cannot be translated as asked."""


def decoded(text: str | bytes) -> str:
    """Decode UTF-8; Refusal with the place for other bytes, and for half of a surrogate pair in a text."""
    try:
        return text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        unit, start = ("byte" if isinstance(text, bytes) else "character"), getattr(error, "start", 0)
        raise Refusal(f"not UTF-8 at {unit} {start + 1:,}") from error


@dataclass(frozen=True)
class Translation:
    """The translations of a text, best first, or the reason why it was refused."""

    texts: tuple[str, ...] = ("",)
    hypotheses: tuple[Hypothesis, ...] = ()
    refused: str = ""
    sentences: int = 1  # that the text was split into
    pairs: tuple[tuple[Ids, Ids], ...] = ()  # the ids of each sentence and of its best translation, EOS last
    forms: tuple[SurfaceForm, ...] = ()  # of each sentence; one without text has no pair
    warnings: tuple[str, ...] = ()  # signs that it lacks part of its source, or is wrong
    space: str = ""  # that stands behind the source, where it is a sentence of a text

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def hit_limit(self) -> bool:
        return any(hypothesis.hit_limit for hypothesis in self.hypotheses[:1])
