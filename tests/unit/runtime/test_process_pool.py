"""Processes that share a preparation change nothing in its result, and leave nothing behind however it ends."""

from __future__ import annotations

import os
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import run_config, tokenizer_config
from tests.support.corpora import write_corpus
from tests.support.pool_tasks import process_number, square
from translator.data import cleaning
from translator.data import preparation as data
from translator.data.cleaning import Seen
from translator.data.preparation import load_split, prepare
from translator.data.sources import SPLITS
from translator.runtime.process_pool import AHEAD, answering, in_order


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_come_in_order_and_questions_are_read_lazily(workers):
    questions = count()
    answers = in_order(square, questions, workers=workers, remedy="")
    for number in range(100):
        assert next(answers) == number**2
    assert next(questions) <= 100 + (AHEAD + 1) * workers
    assert list(in_order(square, range(3), workers=workers, remedy="")) == [0, 1, 4]


def test_workers_may_be_asked_again():
    with answering(process_number, workers=2, remedy="") as answers:
        numbers = set(answers(range(2)))
        assert len(numbers) == 2
        assert set(answers(range(6))) <= numbers
        assert list(answers(())) == []


def test_no_more_workers_are_started_than_there_are_questions():
    numbers = list(in_order(process_number, range(2), workers=1000, remedy=""))
    assert len({os.getpid(), *numbers}) == 3
    assert list(in_order(process_number, (), workers=1000, remedy="")) == []


def test_what_fails_in_a_worker_fails_here():
    with pytest.raises(TypeError) as caught:
        list(in_order(square, [1, "a"], workers=2, remedy=""))
    assert "in _work" in caught.value.__notes__[0]  # it names where it failed too


@given(st.lists(st.lists(st.integers(0, 30) | st.integers(2**64 - 3, 2**64 - 1))))
def test_numbers_are_new_once(batches):
    seen, known = Seen(), set[int]()
    for batch in batches:
        expected = []
        for number in batch:
            expected.append(number not in known)
            known.add(number)
        assert seen.add(np.array(batch, np.uint64)).tolist() == expected


def test_any_number_of_workers_prepares_the_same(tmp_path, monkeypatch):
    for module in (cleaning, data):
        monkeypatch.setattr(module, "READ_ROWS", 97)
    file = write_corpus(tmp_path)
    prepared = []
    for workers in (1, 3):
        cache = tmp_path / f"cache-{workers}"
        config = run_config(
            "data=files", f"data.train={file}", f"data.cache={cache}", f"data.workers={workers}", "data.holdout=20")
        corpus = prepare(config.data, tokenizer_config(), max_tokens=20)
        names = sorted(path.name for path in cache.glob("*") if path.is_dir())
        files = [(cache / name / f"{split}.arrow").read_bytes() for name in names for split in SPLITS]
        prepared.append((names, files, corpus.report, corpus.source_tokenizer.model))
        assert len(load_split(config.data, "train")) >= len(corpus.train) > 0
    assert prepared[0] == prepared[1]
    dropped = prepared[0][2]["splits"]["train"]["dropped"]
    assert set(dropped) >= {"duplicate", "overlap with validation or test", "missing or not text", "empty", "too long"}

