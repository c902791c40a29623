"""Preparations whose workers are killed or stopped."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import write_corpus
from tests.support.paths import ROOT
from tests.support.pool_tasks import send_signal
from translator.runtime import process_pool as pool
from translator.runtime.errors import UserError
from translator.runtime.process_pool import in_order


def test_a_killed_worker_is_told_with_its_remedy():
    with pytest.raises(UserError, match=r"a worker was killed.*; try this"):
        list(in_order(send_signal, [0, 0, signal.SIGKILL, 0], workers=2, remedy="try this"))


def test_a_stopped_worker_is_waited_for_and_told_of(monkeypatch):
    told = []

    def wake(text: str) -> None:
        told.append(text)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGCONT)

    monkeypatch.setattr(pool, "PATIENCE", 3)
    monkeypatch.setattr(pool, "log", wake)
    assert list(in_order(send_signal, [0, signal.SIGSTOP, 0], workers=2, remedy="")) == [None] * 3
    assert told
    assert "none of the 2 workers has answered; still waiting" in told[0]


def children(process: int) -> list[int]:
    with suppress(FileNotFoundError):
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    return []


def running(process: int) -> bool:
    """Whether it is there, and no mere entry that nobody has asked for."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


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
