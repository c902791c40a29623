"""Distillation: the student gets the teacher's vocabulary, comes closer to it, and resumes with the same teacher only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.support.configurations import TINY, run_config
from tests.support.corpora import PAIRS, write_pairs
from translator.config.options import RunConfig
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import load_tensors, save_tensors
from translator.runtime.errors import UserError
from translator.training.train import train


@pytest.fixture(autouse=True)
def _untuned(monkeypatch) -> None:
    monkeypatch.setattr("translator.training.train.tune_cpu", lambda **_: None)  # it would last for all tests after this


def student(folder: Path, *options: str) -> RunConfig:
    data = write_pairs(folder / "pairs.tsv", PAIRS)
    return run_config(
        *TINY, "data=files", f"data.train={data}", f"data.cache={folder}/cache", "data.holdout=8", f"runs={folder}",
        "train.max_epochs=null", "train.max_minutes=null", "train.max_updates=4", "train.validate_every=2", "search=greedy",
        *options)


def test_a_student_has_its_teachers_vocabulary_and_resumes(trained_folder, tmp_path):
    teacher = shutil.copytree(trained_folder, tmp_path / "teacher")
    config = student(tmp_path, f"train.teacher={teacher}")
    run = train(config)
    assert (run.folder.path / "tokenizer.model").read_bytes() == (teacher / "tokenizer.model").read_bytes()
    moved = student(tmp_path, f"train.teacher={shutil.copytree(teacher, tmp_path / 'moved')}", "train.max_updates=6")
    assert train(moved).outcome.update == 6
    weights = load_tensors(teacher / "model.safetensors")
    save_tensors(teacher / "model.safetensors", {name: weight * 1.01 for name, weight in weights.items()})
    for changed in (config, student(tmp_path, "train.teacher=null")):
        with pytest.raises(UserError, match=r"train\.teacher=.* changed since"):
            train(changed, named=["train.teacher"])
