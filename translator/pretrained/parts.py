"""What a model from elsewhere is made of, before it is made into ours and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from translator.config.options import ModelConfig, TokenizerConfig
from translator.runtime.atomic_files import Weights
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pretrained:
    """A model's shape, its vocabulary and its weights, as this project has them."""

    source: str  # where it came from
    model: ModelConfig
    tokenizer: TokenizerConfig
    tokenizers: tuple[Tokenizer, Tokenizer]  # the source's and the target's
    weights: Weights


@dataclass(frozen=True)
class Side:
    """How one side of another toolkit's model turns text into rows of its embeddings."""

    pieces: bytes  # a SentencePiece model, whose own ids mean nothing
    rows: Mapping[str, int]  # the row of each piece, as far as rows have names
    unknown: int
    tag: str | None  # the piece that every text begins with


@dataclass(frozen=True)
class Family:
    """What is particular about Marian's models, or M2M-100's."""

    norm: Literal["pre", "post"]
    source: Side
    target: Side
    tags: frozenset[str]  # pieces that are no text, but tell languages apart
    bias: Tensor  # of the output projection
    silent: tuple[int, ...]  # rows that are never produced, and have no share in the probabilities
    positions: Tensor | None  # the table of positions (T, D); None: sines in the first half of the channels, then cosines


def choose_tag(option: str, wanted: str | None, usual: str, tags: frozenset[str]) -> str:
    """The tag that `option` wants, or the usual one; UserError where the model has no such tag."""
    tag = wanted or usual
    if tag not in tags:
        raise UserError(f"tokenizer.{option}={tag}: this model has {', '.join(sorted(tags))}; choose one of them")
    return tag
