"""The options of the stages of a training: conf/train, train.stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.augmentation import AugmentConfig, Fraction
from translator.config.building import STRICT, Count, Options, build
from translator.config.synthetic import OpenShare
from translator.runtime.errors import UserError

Name = Annotated[str, Field(min_length=1)]
Weight = Annotated[float, Field(gt=0, le=1e9)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StageConfig(Options):
    """A part of a training: which corpora it is on, how long, at which rate."""
    GROUP = "train.stages, "

    corpora: Annotated[dict[Name, Weight], Field(min_length=1)] | Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    updates: Count | None = None
    epochs: Count | None = None
    share: OpenShare | None = None
    rate: Annotated[float, Field(gt=0, le=1000)] = 1.0
    augment: dict[str, Fraction] | None = None

    def __post_init__(self) -> None:
        names = list(self.corpora or ())
        self.require(len(set(names)) == len(names), "corpora", "names a corpus twice. Name it once, with a weight.")

    @property
    def lengths(self) -> dict[str, float]:
        """How long it lasts, by the option that says so."""
        given = {"updates": self.updates, "epochs": self.epochs, "share": self.share}
        return {option: value for option, value in given.items() if value is not None}

    def augmented(self, augment: AugmentConfig) -> AugmentConfig:
        """Return the options of `data.augment` and this stage's changes."""
        try:
            return build(AugmentConfig, dataclasses.asdict(augment) | (self.augment or {}))
        except UserError as error:
            raise UserError(str(error).replace("data.", self.GROUP)) from error


def require_schedule(stages: Sequence[StageConfig]) -> None:
    """Raise UserError for stages that do not follow each other."""
    *others, last = stages
    last.require(not last.lengths, next(iter(last.lengths), ""), "the last stage lasts to the end. Leave this out.")
    for number, stage in enumerate(others, start=1):
        stage.require(len(stage.lengths) == 1, "updates", f"stage {number} needs updates, epochs or share, one of them")
        stage.require(stage.lengths.keys() == others[0].lengths.keys(), next(iter(stage.lengths)),
                      "all stages but the last need the same of updates, epochs and share")
    last.require(sum(stage.share or 0 for stage in others) < 1, "share", "leaves nothing for the last stage. Lower the shares.")
