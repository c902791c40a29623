"""What happens to machines, done to real trainings: signals, a second process, a disk that is full, a folder that goes."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from translator.runs.run_folder import RunFolder


class Training:
    """scripts/train.py in a process of its own, at work for longer than any test, unless it is told otherwise."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = RunFolder(folder / "run")
        data = folder / "pairs.tsv"
        if not data.is_file():
            write_pairs(data, PAIRS)
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "train.py"), "data=files", f"data.train={data}", f"data.cache={folder}",
             f"runs={folder}", "name=run", *TINY, "train.batch_tokens=150",
             "train.log_every=1", "train.max_updates=100000", "train.max_epochs=null", "train.max_minutes=null",
             "train.validate_every=20", "train.patience=null", *options],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for(self, happened: Callable[[], bool]) -> None:
        while not happened():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)

    def saved(self) -> int:
        """The update of the newest checkpoint."""
        return max(self.folder.checkpoints.resumable(), default=0)

    def end(self) -> tuple[int, list[str]]:
        """Its exit code and what it said."""
        _, said = self.process.communicate(timeout=120)
        assert b"Traceback" not in said, said.decode()
        return self.process.returncode, said.decode().strip().splitlines()


@pytest.fixture
def started(tmp_path):
    """A training that has saved twice."""
    training = Training(tmp_path)
    training.wait_for(lambda: training.saved() >= 40)
    yield training
    training.process.kill()
    training.process.wait()


def test_one_user_at_a_time_and_signals(started, tmp_path):
    code, said = Training(tmp_path).end()
    assert code == 2
    assert said[-1].startswith("error: ")
    assert f"process {started.process.pid} on " in said[-1]
    started.process.send_signal(signal.SIGTERM)
    code, said = started.end()
    assert code == 128 + signal.SIGTERM
    assert "The same command resumes." in said[-1]
    stopped_at = started.saved()
    again = Training(tmp_path)
    again.wait_for(lambda: again.saved() >= stopped_at + 20)
    for _ in range(2):
        again.process.send_signal(signal.SIGINT)
    code, said = again.end()
    assert code == 128 + signal.SIGINT
    assert any("stopping" in line for line in said)
    again.folder.checkpoints.load(again.saved())  # whole, whichever of the two signals came in the midst of what


def test_a_disk_without_room_costs_nothing_that_was_saved(started, tmp_path):
    """A limit on the size of files stands for a full disk: the next checkpoint cannot be written."""
    limit = 1000
    resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    code, said = started.end()
    assert code == 2
    assert "cannot be written" in said[-1]
    saved = started.saved()
    started.folder.checkpoints.load(saved)
    again = Training(tmp_path, f"train.max_updates={saved + 5}")
    code, said = again.end()
    assert code == 0
    assert any(f"resuming   from update {saved}" in line for line in said)
    assert again.saved() == saved + 5
    assert not list(again.folder.path.rglob(".*.partial"))


def test_other_data_is_refused_and_the_run_left_untouched(started, tmp_path):
    started.process.send_signal(signal.SIGTERM)
    started.end()
    before = {path: path.read_bytes() for path in started.folder.path.rglob("*") if path.is_file() and "lock" not in path.name}
    write_pairs(tmp_path / "pairs.tsv", [*PAIRS, ("Some more.", "Noch mehr.")])
    code, said = Training(tmp_path).end()
    assert code == 2
    assert "the data" in said[-1]
    assert "changed since this run began" in said[-1]
    assert before == {path: path.read_bytes() for path in before}


def test_a_folder_that_is_removed_is_told(started):
    shutil.rmtree(started.folder.path, ignore_errors=True)
    code, said = started.end()
    assert code == 2
    assert str(started.folder.path) in said[-1]
    assert not started.folder.config_file.exists()
