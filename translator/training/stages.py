"""The stages of a training: which corpora, until when, at which rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from translator.config.augmentation import AugmentConfig
from translator.config.building import build
from translator.config.options import RunConfig
from translator.config.stages import StageConfig
from translator.data.mixing import Mix, weights_of
from translator.data.preparation import Corpus, corpora_in
from translator.runtime.errors import UserError, unknown


@dataclass(frozen=True)
class Stage:
    """A stage of a training. It ends at an update, after epochs of its own, or at a fraction of the training."""

    mix: Mix | None  # None: every pair once an epoch
    rate: float  # by which the learning rate of the schedule is multiplied
    augment: AugmentConfig
    updates: float  # of the whole training
    epochs: float  # of this stage
    done: float

    def is_over(self, *, update: int, epochs: float, done: float) -> bool:
        return update >= self.updates or epochs >= self.epochs or done >= self.done

    def __str__(self) -> str:
        shares = "all pairs" if self.mix is None else str(self.mix)
        ends = [text for value, text in (
            (self.updates, f"to update {self.updates:,}"), (self.epochs, f"for {self.epochs:g} epochs"),
            (self.done, f"to {100 * self.done:.0f} % of the training")) if value < math.inf]
        rate = [f"rate × {self.rate:g}"] if self.rate != 1 else []
        return ", ".join([shares, *ends, *rate])


def stages_of(config: RunConfig, corpus: Corpus) -> list[Stage]:
    """Return the stages of a training; one where `train.stages` names none. UserError for a corpus that is not there."""
    sections = corpora_in(corpus.report, "train") or {"": range(len(corpus.train))}
    stages, updates, done = list[Stage](), 0, 0.0
    for options in config.train.stages or (StageConfig(),):
        updates, done = updates + (options.updates or 0), done + (options.share or 0)
        augment = config.data.augment
        if options.augment is not None:
            augment = build(AugmentConfig, dataclasses.asdict(augment) | options.augment)
        stages.append(Stage(
            _mix(options, sections, weights_of(config.data, sections)), options.rate, augment,
            updates if options.updates else math.inf, options.epochs or math.inf, done if options.share else math.inf))
    return stages


def _mix(options: StageConfig, sections: Mapping[str, range], weights: Mapping[str, float]) -> Mix | None:
    """Return the corpora of a stage with its own weights, or the weights of the data, or their sizes."""
    named = sections if options.corpora is None else options.corpora
    for name in named:
        if name not in sections:
            there = [section for section in sections if section]
            raise UserError("train.stages, corpora: " + (
                unknown("corpus", name, there) if there else "needs data.corpora, or back-translations"))
    if isinstance(options.corpora, dict):
        return Mix(sections, options.corpora)
    if not weights and len(named) == len(sections):
        return None
    return Mix(sections, {name: weights[name] if weights else len(sections[name]) for name in named})
