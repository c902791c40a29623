"""The tables of growth are made by real updates and real starts, each in a process of its own."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import corpus
import growth
import pytest

from tests.support.configurations import model_config, run_config, tokenizer_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from translator.config.options import RunConfig


@pytest.fixture
def config() -> RunConfig:
    return dataclasses.replace(run_config("tokenizer.vocab_size=400", "device=cpu", "precision=fp32"), model=model_config())


@pytest.mark.torture
def test_a_row_has_a_figure_under_every_heading(config, monkeypatch):
    monkeypatch.setattr(growth, "LENGTHS", (64,))
    for name in ("length", "attention"):
        heading, row = growth.TABLES[name](config)
        assert len(row) == len(heading)
        assert all(float(cell.replace(",", "")) >= 0 for cell in row)
        assert float(row[1].replace(",", "")) > 0


@pytest.mark.torture
def test_tables_vary_depth_and_vocabulary(config):
    for changed, values in (("depth", (1, 2)), ("vocabulary", (100, 200))):
        heading, *rows = growth.training_table("varied", values, changed, config)
        assert [row[0] for row in rows] == [str(value) for value in values]
        assert len(rows[0]) == len(heading) == 3


def test_a_table_that_there_is_not_is_refused_by_name():
    ran = subprocess.run([sys.executable, "scripts/bench/growth.py", "lenght"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: lenght: no such table; there are length")
    assert ran.stderr.count("\n") == 1


@pytest.fixture
def small(config, tmp_path) -> RunConfig:
    write_pairs(tmp_path / "pairs.tsv", PAIRS)
    data = dataclasses.replace(config.data, path=None, train=f"{tmp_path}/pairs.tsv", cache=f"{tmp_path}/cache", holdout=10)
    return dataclasses.replace(config, data=data, tokenizer=tokenizer_config(vocab_size=310))


def test_a_corpus_is_repeated_with_variations(small, tmp_path):
    (tmp_path / "repeated").mkdir()
    data = corpus.with_repeated(small, tmp_path / "repeated", 500, validation=None, test=None).data
    assert (data.validation, data.test) == (None, None)
    source, target = (Path(file).read_text().splitlines() for file in data.train)
    pairs = list(zip(source, target, strict=True))
    assert len(set(pairs)) == 500
    assert pairs[-1] == tuple(f"{text} 2" for text in pairs[499 - 2 * (len(PAIRS) - 20)])


@pytest.mark.torture
def test_a_corpus_is_prepared_by_one_process_and_by_two_and_then_taken_up(small):
    heading, *rows = corpus.preparation_table((500,), (1, 2), small)
    assert [row[:2] for row in rows] == [["500", "1"], ["500", "2"]]
    assert all(len(row) == len(heading) for row in rows)


@pytest.mark.torture
def test_a_corpus_is_streamed_by_one_process_and_by_two(small):
    heading, *rows = corpus.stream_table(small, 500, 100)
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(len(row) == len(heading) and float(row[2].replace(",", "")) > 0 for row in rows)
