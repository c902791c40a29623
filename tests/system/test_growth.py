"""The tables of growth are made by real updates and real starts, each in a process of its own."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from tests.support.configurations import model_config, run_config, tokenizer_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from translator.bench import corpus_growth, growth
from translator.config.options import RunConfig
from translator.data.preparation import load_split


@pytest.fixture
def config() -> RunConfig:
    return dataclasses.replace(run_config("tokenizer.vocab_size=400", "device=cpu", "precision=fp32"), model=model_config())


@pytest.mark.torture
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


@pytest.mark.torture
def test_a_made_up_corpus_is_prepared_once_and_then_taken_up(config):
    heading, row = corpus_growth.corpus_table(config, [500])
    assert len(row) == len(heading)
    assert row[0] == "500"


@pytest.mark.torture
def test_a_corpus_is_repeated_with_variations_and_prepared_by_one_process_and_by_two(config, tmp_path):
    write_pairs(tmp_path / "pairs.tsv", PAIRS)
    data = dataclasses.replace(config.data, path=None, train=f"{tmp_path}/pairs.tsv", cache=f"{tmp_path}/cache", holdout=10)
    source, target = corpus_growth.repeat_corpus(tmp_path, load_split(data, "train"), 500)
    pairs = list(zip(source.read_text().splitlines(), target.read_text().splitlines(), strict=True))
    assert len(set(pairs)) == 500
    assert pairs[-1] == tuple(f"{text} 2" for text in pairs[499 - 2 * (len(PAIRS) - 20)])
    small = dataclasses.replace(config, data=data, tokenizer=tokenizer_config(vocab_size=310))
    heading, *rows = corpus_growth.preparation_table(small, [500])
    assert [row[:2] for row in rows] == [["500", "1"], ["500", "2"]]
    assert all(len(row) == len(heading) for row in rows)


@pytest.mark.torture
def test_a_corpus_is_streamed_by_one_process_and_by_two(config, tmp_path):
    write_pairs(tmp_path / "pairs.tsv", PAIRS)
    data = dataclasses.replace(config.data, path=None, train=f"{tmp_path}/pairs.tsv", cache=f"{tmp_path}/cache", holdout=10)
    small = dataclasses.replace(config, data=data, tokenizer=tokenizer_config(vocab_size=310))
    heading, *rows = corpus_growth.stream_table(small, 500, 100)
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(len(row) == len(heading) and float(row[2].replace(",", "")) > 0 for row in rows)


def test_a_made_up_corpus_is_a_function_of_its_size(tmp_path):
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        texts.append([file.read_text().splitlines() for file in corpus_growth.write_corpus(tmp_path / name, 300)])
    assert texts[0] == texts[1]
    source, target = texts[0]
    assert len(source) == len(target) == 300
    assert [len(line.split()) for line in source] == [len(line.split()) for line in target]
    assert source != target
