"""The options of noise in training: conf/data, data.augment."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Options

Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AugmentConfig(Options):
    """What share of the training pairs is changed, by kind."""
    GROUP = "data.augment."

    numbers: Fraction = 0.0
    placeholders: Fraction = 0.0
    no_stop: Fraction = 0.0
    upper: Fraction = 0.0
    title: Fraction = 0.0
    lower: Fraction = 0.0
    typos: Fraction = 0.0

    def __post_init__(self) -> None:
        self.require(self.upper + self.title + self.lower <= 1, "upper", "with title and lower is more than 1. Lower them.")
