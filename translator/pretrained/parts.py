"""A model of another toolkit, before and after it is converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from translator.config.options import ModelConfig, TokenizerConfig
from translator.runtime.atomic_files import Weights
from translator.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pretrained:
    """A converted model: its options, its vocabulary and its weights."""

    source: str  # the folder or the hub id it came from
    model: ModelConfig
    tokenizer: TokenizerConfig
    tokenizers: tuple[Tokenizer, Tokenizer]  # the source's and the target's
    weights: Weights


@dataclass(frozen=True)
class Side:
    """How the source, or the target, of another toolkit's model becomes rows of its embeddings."""

    pieces: bytes  # a SentencePiece model, whose own ids are not used
    rows: Mapping[str, int]  # the row of each piece that has one
    unknown: int
    tag: str | None  # the piece that every text begins with


@dataclass(frozen=True)
class Family:
    """What Marian's models and M2M-100's do differently."""

    norm: Literal["pre", "post"]
    source: Side
    target: Side
    tags: frozenset[str]  # pieces that name languages and are no text
    bias: Tensor  # of the output projection
    silent: tuple[int, ...]  # rows that are never output, and take no probability
    positions: Tensor | None  # the table of positions (T, D); None: sines in the first half of the channels, then cosines
