"""The tables of growth are made by real updates and real starts, each in a process of its own."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from tests.conftest import ROOT, model_config, run_config
from translator import growth
from translator.config import RunConfig


@pytest.fixture
def config() -> RunConfig:
    return dataclasses.replace(run_config("tokenizer.vocab_size=400", "device=cpu", "precision=fp32"), model=model_config())


def test_a_row_has_a_figure_under_every_heading(config, monkeypatch):
    monkeypatch.setattr(growth, "LENGTHS", (64,))
    for table in (growth.length_table, growth.attention_table):
        heading, row = table(config)
        assert len(row) == len(heading)
        assert all(float(cell.replace(",", "")) >= 0 for cell in row)
        assert float(row[1].replace(",", "")) > 0


def test_a_table_that_there_is_not_is_refused_by_name():
    ran = subprocess.run([sys.executable, "scripts/growth.py", "lenght"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: lenght: no such table; there are length")
    assert ran.stderr.count("\n") == 1


def test_a_made_up_corpus_is_prepared_once_and_then_taken_up(config):
    heading, row = growth.corpus_table(config, [500])
    assert len(row) == len(heading)
    assert row[0] == "500"


def test_a_made_up_corpus_is_a_function_of_its_size(tmp_path):
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        texts.append([file.read_text().splitlines() for file in growth.write_corpus(tmp_path / name, 300)])
    assert texts[0] == texts[1]
    source, target = texts[0]
    assert len(source) == len(target) == 300
    assert [len(line.split()) for line in source] == [len(line.split()) for line in target]
    assert source != target
