"""The tables of growth are made by real updates and trainings, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import growth
import pytest

from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT

TINY = ["model.d_model=32", "train.batch_tokens=256", "device=cpu", "precision=fp32"]


@pytest.mark.torture
def test_updates_are_measured_by_model_and_length(monkeypatch):
    monkeypatch.setattr(growth, "MODELS", ("tiny",))
    monkeypatch.setattr(growth, "LENGTHS", (32, 64))
    heading, *rows = growth.update_table(TINY)
    assert [row[:2] for row in rows] == [["tiny", "32"], ["tiny", "64"]]
    for row in rows:
        assert len(row) == len(heading)
        assert all(float(cell.replace(",", "")) >= 0 for cell in row[1:])
        assert float(row[2].replace(",", "")) > 0


@pytest.mark.torture
def test_learning_is_measured_by_pairs(monkeypatch, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    monkeypatch.setattr(growth, "PAIRS", (100, 10**9))
    heading, *rows = growth.learning_table([
        *TINY, "data=files", f"data.train={data}", f"data.cache={tmp_path}/cache", "data.holdout=20",
        "tokenizer.vocab_size=320", "model=tiny", "train.max_updates=2"])
    (fewer, *_), (every, *_) = rows
    assert fewer == "100" < every
    assert [row[1] for row in rows] == ["2", "2"]
    assert all(len(row) == len(heading) for row in rows)


def test_a_table_that_there_is_not_is_refused_by_name():
    ran = subprocess.run([sys.executable, "scripts/bench/growth.py", "lenght"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == "error: lenght: no such table. Choose among update, learning.\n"
