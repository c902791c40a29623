"""Processes that share a preparation change nothing in its result, and leave nothing behind however it ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pool_tasks import killed, own_number, squared
from tests.conftest import PAIRS, ROOT, TINY, run_config, tokenizer_config
from translator.data import cleaning
from translator.data import preparation as data
from translator.data.cleaning import Seen
from translator.data.preparation import load_split, prepare
from translator.data.sources import SPLITS
from translator.runtime import process_pool as pool
from translator.runtime.errors import UserError
from translator.runtime.process_pool import AHEAD, answering, in_order


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_come_in_order_and_questions_are_asked_as_they_are_needed(workers):
    questions = count()
    answers = in_order(squared, questions, workers=workers, remedy="")
    for number in range(100):
        assert next(answers) == number**2
    assert next(questions) <= 100 + (AHEAD + 1) * workers
    assert list(in_order(squared, range(3), workers=workers, remedy="")) == [0, 1, 4]


def test_workers_may_be_asked_again():
    with answering(own_number, workers=2, remedy="") as answers:
        numbers = set(answers(range(2)))
        assert len(numbers) == 2
        assert set(answers(range(6))) <= numbers
        assert list(answers(())) == []


def test_no_more_workers_are_started_than_there_are_questions():
    numbers = list(in_order(own_number, range(2), workers=1000, remedy=""))
    assert len({os.getpid(), *numbers}) == 3
    assert list(in_order(own_number, (), workers=1000, remedy="")) == []


def test_what_fails_in_a_worker_fails_here():
    with pytest.raises(TypeError) as caught:
        list(in_order(squared, [1, "a"], workers=2, remedy=""))
    assert "in _work" in caught.value.__notes__[0]  # where it failed is told too


@pytest.mark.torture
def test_a_killed_worker_is_told_with_its_remedy():
    with pytest.raises(UserError, match=r"a worker was killed.*; try this"):
        list(in_order(killed, [0, 0, signal.SIGKILL, 0], workers=2, remedy="try this"))


@pytest.mark.torture
def test_a_stopped_worker_is_waited_for_and_told_of(monkeypatch):
    told = []

    def wake(text: str) -> None:
        told.append(text)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGCONT)

    monkeypatch.setattr(pool, "PATIENCE", 3)
    monkeypatch.setattr(pool, "log", wake)
    assert list(in_order(killed, [0, signal.SIGSTOP, 0], workers=2, remedy="")) == [None] * 3
    assert told
    assert "none of the 2 workers has answered; still waiting" in told[0]


@given(st.lists(st.lists(st.integers(0, 30) | st.integers(2**64 - 3, 2**64 - 1))))
def test_numbers_are_new_once(batches):
    seen, known = Seen(), set[int]()
    for batch in batches:
        expected = []
        for number in batch:
            expected.append(number not in known)
            known.add(number)
        assert seen.add(np.array(batch, np.uint64)).tolist() == expected


def write_corpus(folder: Path, copies: int = 1) -> Path:
    """Rows of which some are bad, some there again many rows later, and some share a sentence with others."""
    rows: list[tuple[object, object]] = [(f"{i} {s}", f"{i} {t}") for i in range(copies) for s, t in PAIRS]
    rows += [*PAIRS, *PAIRS[:50], (None, "a"), ("b", ""), ("a" * 2000, "b" * 2000), (PAIRS[0][0], "anderes"), (7, "sieben")]
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in rows * 2))
    return file


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


def children(process: int) -> list[int]:
    with suppress(FileNotFoundError):
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    return []


def running(process: int) -> bool:
    """Whether it is there, and no mere entry that nobody has asked for."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.torture
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds workers by /proc")
@pytest.mark.parametrize(("victim", "sent", "code", "last"), [
    ("parent", signal.SIGINT, 130, "interrupted"), ("parent", signal.SIGKILL, -9, ""),
    ("worker", signal.SIGKILL, 2, "error: a worker was killed, perhaps for want of memory; try data.workers=1")])
def test_however_a_preparation_ends_no_worker_and_no_half_stays(tmp_path, victim, sent, code, last):
    file = write_corpus(tmp_path, copies=600)  # whose cleaning outlasts the wait below
    job = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "train.py"), "data=files", f"data.train={file}", f"data.cache={tmp_path}/cache",
         f"runs={tmp_path}/runs", "data.workers=2", *TINY],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while len(workers := children(job.pid)) < 3:  # two, and Python's own tracker of resources
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    time.sleep(random.uniform(0.1, 3))
    os.kill(job.pid if victim == "parent" else workers[-1], sent)
    _, said = job.communicate(timeout=120)
    assert job.returncode == code, said.decode()
    assert "Traceback" not in said.decode()
    assert said.decode().strip().splitlines()[-1:] == ([last] if last else [])
    while any(map(running, workers)):
        time.sleep(0.01)
    left = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    halves = [path for path in left if path.name.endswith(".partial")]
    assert not halves or (victim == "parent" and sent == signal.SIGKILL)
    assert all((path / "report.json").is_file() for path in left if path not in halves)  # it is written last
