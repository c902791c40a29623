"""The command `make teach`: train a student with the data and the tokenizer of its teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from translator.config.building import with_named
from translator.config.options import RunConfig
from translator.runs.finding import with_found_runs
from translator.runs.run_folder import RunFolder
from translator.runtime.typed import typed
from translator.training.train import TrainedRun, train

OWN = ("data.teacher", "data.cache", "data.workers")  # options that a student does not take from its teacher


def teach(config: RunConfig, *, named: Sequence[str] = ()) -> TrainedRun:
    """Train a student of data.teacher, or resume it. named: options that the user gave."""
    return train(as_student(with_found_runs(config), named), named=named)


def as_student(config: RunConfig, named: Sequence[str]) -> RunConfig:
    """Return the options with the data and the tokenizer of data.teacher, of an ensemble of the first run.

    named: options that the user gave, such as `data.limit`, which stay as given.
    """
    teacher = config.data.teacher
    command = typed("teach", **{"data.teacher": ..., "name": ...})
    config.require(teacher is not None, "data.teacher", f"names no run. Give one: {command}.")
    config.require("name" in named, "name", f"is missing. Name the student: {command}.")
    assert teacher is not None
    saved = RunFolder(teacher if isinstance(teacher, str) else teacher[0]).load_config()
    config.require(saved.data.corpora is None, "data.teacher", "was trained on several corpora, and these translations are of "
                   "one. Train on data=mix with train.teacher instead, which learns from its probabilities.")
    data = with_named(saved.data, config.data, {*named, *OWN})
    tokenizer = with_named(dataclasses.replace(saved.tokenizer, source_tag=None, target_tag=None), config.tokenizer, named)
    return dataclasses.replace(config, data=data, tokenizer=tokenizer)
