"""Trainings of several processes under torchrun survive workers that die, hang, and are told to stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from tests.support.processes import needs_proc, workers_of
from translator.runs.run_folder import RunFolder

OPTIONS = [
    "data=files", *TINY, "train.batch_tokens=150", "train.log_every=1", "train.max_epochs=null", "train.max_minutes=null",
    "train.validate_every=10", "train.average=none", "train.patience=null"]


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start torchrun with options of its own and of a training; what is left of it is ended with the test."""
    jobs: list[subprocess.Popen[bytes]] = []

    def torchrun(data: Path, launcher: list[str], *options: str) -> subprocess.Popen[bytes]:
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        jobs.append(subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *launcher, str(ROOT / "scripts" / "train.py"), *OPTIONS,
             f"data.train={data}", f"data.cache={data.parent}", f"runs={data.parent}", "name=run", *options],
            cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return jobs[-1]

    yield torchrun
    for job in jobs:
        for process in (*workers_of(job), job.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        job.wait()


def wait_for(happened: Callable[[], Any], *launchers: subprocess.Popen[bytes]) -> None:
    while not happened():
        for launcher in launchers:
            assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.05)


@needs_proc
def test_two_nodes_bring_a_killed_worker_back(tmp_path, start):
    """Two launchers on loopback are two nodes. One's worker is killed: both start theirs again, from the last checkpoint."""
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [
        "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--max-restarts=1"]
    nodes = [start(data, launcher, "train.max_updates=60", "train.timeout_minutes=0.5") for _ in range(2)]
    run = RunFolder(tmp_path / "run")
    wait_for(lambda: max(run.checkpoints.resumable(), default=0) >= 20, *nodes)
    os.kill(workers_of(nodes[1])[0], signal.SIGKILL)
    said = "".join(node.communicate(timeout=240)[1].decode() for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    assert run.checkpoints.resumable()[0] == 60
    assert "resuming   from update" in said


@needs_proc
def test_hanging_worker_times_out_and_dead_one_is_named(tmp_path, start):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    launcher = ["--standalone", "--nproc-per-node=2"]
    run = RunFolder(tmp_path / "run")
    heard_of = {signal.SIGSTOP: ["heard nothing from another", "train.timeout_minutes"], signal.SIGKILL: ["rank", "SIGKILL"]}
    for parallel, fault in (("ddp", signal.SIGSTOP), ("fsdp", signal.SIGSTOP), ("ddp", signal.SIGKILL)):
        job = start(data, launcher, "train.max_updates=100000", "train.timeout_minutes=0.3", f"train.parallel={parallel}")
        before = max(run.checkpoints.resumable(), default=0)
        wait_for(lambda before=before: max(run.checkpoints.resumable(), default=0) >= before + 20, job)
        victim = workers_of(job)[1]
        os.kill(victim, fault)
        started = time.monotonic()
        _, said = job.communicate(timeout=180)
        assert job.returncode != 0
        assert time.monotonic() - started < 120  # the timeout, and torchrun's own patience with what it ends
        for word in heard_of[fault]:
            assert word in said.decode(), said.decode()
        run.checkpoints.load(run.checkpoints.resumable()[0])


@needs_proc
def test_signal_saves_once_and_any_process_count_resumes(tmp_path, start):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    run = RunFolder(tmp_path / "run")
    job = start(data, ["--standalone", "--nproc-per-node=2"], "train.max_updates=100000")
    wait_for(lambda: max(run.checkpoints.resumable(), default=0) >= 20, job)
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=120)
    stopped = run.checkpoints.resumable()[0]
    assert f"Stopped at update {stopped}, saved" in said.decode(), said.decode()
    assert run.load_config().train.accumulation == 2
    alone = start(data, ["--standalone", "--nproc-per-node=1"], f"train.max_updates={stopped + 3}")
    _, said = alone.communicate(timeout=120)
    assert alone.returncode == 0, said.decode()
    assert run.checkpoints.resumable()[0] == stopped + 3
