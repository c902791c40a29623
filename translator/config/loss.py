"""The options of the training loss: conf/train."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Options, Runs, Share, UpTo1000


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LossConfig(Options):
    """What training minimises."""
    GROUP = "train."

    label_smoothing: Share
    r_drop: UpTo1000 = 0.0
    r_drop_through: Literal["model", "decoder"] = "model"
    sampled_softmax: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    guided_alignment: UpTo1000 = 0.0
    span_penalty: UpTo1000 = 0.0
    teacher: Runs = None
    distillation: Annotated[float, Field(ge=0, le=1)] = 0.5

    @property
    def passes(self) -> int:
        """How often each batch's targets go through the decoder: twice for R-Drop."""
        return 2 if self.r_drop else 1

    @property
    def encodings(self) -> int:
        """How often a batch's sources go through the encoder."""
        return 1 if self.r_drop and self.r_drop_through == "decoder" else self.passes

    @property
    def teachers(self) -> tuple[str, ...]:
        """The runs to learn from."""
        return (self.teacher,) if isinstance(self.teacher, str) else self.teacher or ()
