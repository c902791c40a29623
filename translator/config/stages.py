"""The options of the stages of a training: conf/train, train.stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.augmentation import Fraction
from translator.config.building import STRICT, Count, Options
from translator.config.synthetic import OpenShare

Name = Annotated[str, Field(min_length=1)]
Weight = Annotated[float, Field(gt=0, le=1e9)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StageConfig(Options):
    """A part of a training: which corpora it is on, how long, at which rate."""
    GROUP = "train.stages, "

    corpora: dict[Name, Weight] | Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    updates: Count | None = None
    epochs: Count | None = None
    share: OpenShare | None = None
    rate: Annotated[float, Field(gt=0, le=1000)] = 1.0
    augment: dict[str, Fraction] | None = None

    @property
    def lengths(self) -> dict[str, float]:
        """How long it lasts, by the option that says so."""
        given = {"updates": self.updates, "epochs": self.epochs, "share": self.share}
        return {option: value for option, value in given.items() if value is not None}


def require_schedule(stages: Sequence[StageConfig]) -> None:
    """Raise UserError for stages that do not follow each other."""
    *others, last = stages
    last.require(not last.lengths, next(iter(last.lengths), ""), "the last stage lasts to the end. Leave this out.")
    for number, stage in enumerate(others, start=1):
        stage.require(len(stage.lengths) == 1, "updates", f"stage {number} needs updates, epochs or share, one of them")
        stage.require(stage.lengths.keys() == others[0].lengths.keys(), next(iter(stage.lengths)),
                      "all stages but the last need the same of updates, epochs and share")
    last.require(sum(stage.share or 0 for stage in others) < 1, "share", "leaves nothing for the last stage. Lower the shares.")
