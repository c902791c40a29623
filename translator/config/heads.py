"""The options of layers and heads: the part of conf/model that pruning changes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, Self

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Count, Options

Width = Annotated[int, Field(ge=1, le=2**20)]
Layers = Annotated[int, Field(ge=1, le=1000)]
HeadCounts = tuple[Count, ...] | None
# The three kinds of attention: self-attention of the encoder and of the decoder, and the decoder's to the encoder's output.
Attention = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadOptions(Options):
    """How many layers there are, how many heads each has, and how wide they are."""
    GROUP = "model."

    d_model: Width
    num_heads: Count
    head_width: Width | None = None
    encoder_layers: Layers
    decoder_layers: Layers
    encoder_heads: HeadCounts = None
    decoder_heads: HeadCounts = None
    cross_heads: HeadCounts = None

    def __post_init__(self) -> None:
        if self.head_width is None:
            self.require(self.d_model % (2 * self.num_heads) == 0, "d_model",
                         f"{self.d_model} is not a multiple of twice model.num_heads={self.num_heads}")
        else:
            for option in ("d_model", "head_width"):
                self.require(getattr(self, option) % 2 == 0, option, f"{getattr(self, option)} is odd. Choose an even number.")
        for kind, layers in (("encoder", "encoder_layers"), ("decoder", "decoder_layers"), ("cross", "decoder_layers")):
            heads, count = getattr(self, f"{kind}_heads"), getattr(self, layers)
            self.require(heads is None or len(heads) == count, f"{kind}_heads",
                         f"does not have one number for each of model.{layers}={count}")

    @property
    def d_k(self) -> int:
        """The width of a head."""
        return self.d_model // self.num_heads if self.head_width is None else self.head_width

    def heads(self, kind: Attention) -> tuple[int, ...]:
        """Return the number of heads in every layer of one kind of attention."""
        layers = self.encoder_layers if kind == "encoder" else self.decoder_layers
        return getattr(self, f"{kind}_heads") or (self.num_heads,) * layers

    def with_heads(self, count: int) -> Self:
        """Return the options of an attention with this many heads, each as wide as here."""
        return self if count == self.num_heads else dataclasses.replace(self, num_heads=count, head_width=self.d_k)
