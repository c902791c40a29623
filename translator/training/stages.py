"""The stages of a training: which corpora, until when, at which rate."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from translator.config.augmentation import AugmentConfig
from translator.config.corpora import corpora_of
from translator.config.options import RunConfig
from translator.config.stages import StageConfig
from translator.config.synthetic import BACK, PARALLEL
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
            (self.updates, f"to update {self.updates:,}"),
            (self.epochs, f"for {self.epochs:g} epoch{'s' * (self.epochs != 1)}"),
            (self.done, f"to {100 * self.done:g} % of the training")) if value < math.inf]
        rate = [f"rate × {self.rate:g}"] if self.rate != 1 else []
        return ", ".join([shares, *ends, *rate])


def require_corpora_of_stages(config: RunConfig) -> None:
    """Raise UserError, before any data are read, for a stage with a corpus that is not there."""
    names = [corpus.name for corpus in corpora_of(config.data) if corpus.has_train]
    if config.data.monolingual is not None:
        names = [*(name or PARALLEL for name in names), BACK]
    for options in config.train.stages or ():
        _require_known(options, names)


def stages_of(config: RunConfig, corpus: Corpus) -> list[Stage]:
    """Return the stages of a training; one where `train.stages` names none.

    UserError for a corpus that is not there, and for one whose weight is too small for a pair.
    """
    sections = corpora_in(corpus.report, "train") or {"": range(len(corpus.train))}
    stages, updates, done = list[Stage](), 0, 0.0
    for options in config.train.stages or (StageConfig(),):
        # Rounded: 0.1 + 0.2 is more than 0.3, which would be an update more.
        updates, done = updates + (options.updates or 0), round(done + (options.share or 0), 12)
        mix = _mix(options, sections, weights_of(config.data, sections))
        if mix is not None and config.data.window is None:  # the sections of a stream are of its first window
            _require_pairs(mix, "train.stages" if isinstance(options.corpora, dict) else "data.corpora")
        stages.append(Stage(
            mix, options.rate, options.augmented(config.data.augment), updates if options.updates else math.inf,
            options.epochs or math.inf, done if options.share else math.inf))
    return stages


def idle_corpora(stages: Sequence[Stage]) -> list[str]:
    """Return the corpora that no stage has."""
    mixes = [stage.mix for stage in stages if stage.mix is not None]
    used = {name for mix in mixes for name in mix.weights}
    return [name for name in mixes[0].sections if name not in used] if len(mixes) == len(stages) else []


def _mix(options: StageConfig, sections: Mapping[str, range], weights: Mapping[str, float]) -> Mix | None:
    """Return the corpora of a stage with its own weights, or the weights of the data, or their sizes."""
    named = sections if options.corpora is None else options.corpora
    _require_known(options, sections)
    if isinstance(options.corpora, dict):
        return Mix(sections, options.corpora)
    if not weights and len(named) == len(sections):
        return None
    return Mix(sections, {name: weights[name] if weights else len(sections[name]) for name in named})


def _require_known(options: StageConfig, names: Collection[str]) -> None:
    """Raise UserError for a stage with a corpus that is not among `names`."""
    there = list(filter(None, names))
    for name in options.corpora or ():
        if name not in there:
            raise UserError("train.stages, corpora: " + (
                unknown("corpus", name, there) if there else "needs data.corpora, or back-translations"))


def _require_pairs(mix: Mix, where: str) -> None:
    """Raise UserError for a corpus that would never be trained on."""
    counts = mix.counts()
    for name, count in counts.items():
        if not count:
            raise UserError(f"{where}, {name}: its weight, {mix.weights[name]:g}, gives it no pair in an epoch of "
                            f"{sum(counts.values()):,}. Raise it, or remove the corpus.")
