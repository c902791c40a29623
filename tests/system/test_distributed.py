"""Several processes train as one: the same losses and weights, whatever their number and however they hold the model."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.conftest import PAIRS, ROOT, TINY, model_config, write_pairs
from tests.support.forked import forks
from tests.unit.training.test_trainer import metrics, options, rows
from translator.config.options import RunConfig
from translator.data.preparation import Corpus
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import load_tensors
from translator.runtime.distributed import (
    broadcast_from_main,
    full_tensors_on_main,
    gather,
    is_main_process,
    map_rows,
    own_items,
    process_group,
    shard_module,
    sum_over_processes,
)
from translator.runtime.errors import UserError
from translator.runtime.signals import Interrupted
from translator.text.tokenizer import Tokenizer
from translator.training.trainer import Trainer, new_model


def processes(count: int, work: Callable[..., None], *arguments: Any) -> list[int]:
    """Run `work`, of a module, in so many processes that know each other, as torchrun starts them; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [forks().Process(target=_child, args=(rank, count, port, work, arguments)) for rank in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def _child(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    faulthandler.enable()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
    with process_group("cpu", minutes=1):
        group = weakref.ref(dist.group.WORLD) if count > 1 else None
        work(*arguments)
    assert group is None or group() is None  # the threads of a group that outlives this may abort the process while Python ends


def train(config: RunConfig, folder: Path, tokenizer: Tokenizer) -> None:
    corpus = Corpus(
        rows(tokenizer, PAIRS[8:]), rows(tokenizer, PAIRS[:7]), rows(tokenizer, PAIRS[:8]), tokenizer, tokenizer, {})
    run = RunFolder(folder)
    broadcast_from_main(lambda: run.create(config, (tokenizer, tokenizer), {}))
    Trainer(config, run, corpus, new_model(config, corpus), echo, precision=torch.float32).fit()


def echo(texts: Any) -> list[str]:
    return [text.replace("She sees", "Sie sieht") for text in texts]


def four_batches_an_update(**train: object) -> RunConfig:
    config = options(accumulation=4, batch_tokens=130, max_updates=10, metric="loss", average="last", **train)
    # Adam divides tiny gradients by their own size, rounding and all: a larger eps leaves what is to be compared.
    optim = dataclasses.replace(config.optim, ema_decay=0.9, eps=1e-3)
    return dataclasses.replace(config, model=model_config(dropout=0.1), optim=optim)


def result(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    run = RunFolder(folder)
    weights, training, _ = run.checkpoints.load(10)
    model = {f"model.{name}": weight for name, weight in load_tensors(run.model_file).items()}
    lines = metrics(run)
    return weights | training | model, [{k: v for k, v in line.items() if k != "train/padding"} for line in lines]


def assert_close(a: Path, b: Path) -> None:
    (tensors, lines), (other, other_lines) = result(a), result(b)
    assert tensors.keys() == other.keys()
    for name in tensors:
        torch.testing.assert_close(tensors[name], other[name], atol=5e-4, rtol=1e-3, msg=name)
    assert len(lines) == len(other_lines)
    for line, other_line in zip(lines, other_lines, strict=True):
        assert line == pytest.approx(other_line, rel=1e-3, abs=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    train(four_batches_an_update(), folder, tokenizer)
    return folder


@pytest.mark.parametrize(("count", "parallel"), [(2, "ddp"), (4, "ddp"), (2, "fsdp")])
def test_any_number_of_processes_makes_the_same_run(alone, tmp_path, tokenizer, count, parallel):
    """With dropout, and neither the batches of an epoch nor the sentences of validation a multiple of the processes."""
    assert processes(count, train, four_batches_an_update(parallel=parallel), tmp_path / "run", tokenizer) == [0] * count
    assert_close(tmp_path / "run", alone)


def test_checkpoints_move_between_numbers_of_processes_and_ways_to_hold_a_model(alone, tmp_path, tokenizer):
    first = four_batches_an_update()
    for updates, count, parallel in ((3, 2, "fsdp"), (5, 1, "ddp"), (8, 3, "ddp"), (10, 2, "fsdp")):
        config = dataclasses.replace(first, train=dataclasses.replace(first.train, max_updates=10, parallel=parallel))
        assert processes(count, train_until, config, tmp_path / "run", tokenizer, updates) == [0] * count
        assert RunFolder(tmp_path / "run").checkpoints.resumable()[0] == updates
    assert_close(tmp_path / "run", alone)


def train_until(config: RunConfig, folder: Path, tokenizer: Tokenizer, updates: int) -> None:
    """Train until one process, the last, is told to stop before that update."""
    update = Trainer._update

    def told(trainer: Trainer) -> None:
        update(trainer)
        if trainer.state.update == updates < 10 and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer._update = told  # type: ignore[method-assign]
    with suppress(Interrupted):
        train(config, folder, tokenizer)


def keep_wholes() -> None:
    torch.manual_seed(1)
    module = torch.nn.Linear(4, 3)
    expected = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    if not is_main_process():
        torch.nn.init.zeros_(module.weight)  # as it may have come out otherwise on another machine
    kept = full_tensors_on_main(dict(shard_module(module, [], minutes=1).named_parameters()) | {"count": torch.ones(())})
    assert all(torch.equal(kept[name], expected[name]) for name in expected) if is_main_process() else list(kept) == ["count"]


def test_of_shards_the_first_process_alone_keeps_what_they_make_together():
    assert processes(2, keep_wholes) == [0, 0]


def agree() -> None:
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert sum_over_processes(rank, 1) == [sum(range(count)), count]
    assert broadcast_from_main(lambda: rank) == 0
    items = list(range(10))
    assert gather([item * item for item in own_items(items)]) == [item * item for item in items]
    worked_on = []

    def double(rows: torch.Tensor) -> torch.Tensor:
        worked_on.append(len(rows))
        return 2 * rows.double().mT.contiguous().mT  # in another precision and layout

    for length in (1, 3, 7):
        rows = torch.randn(length, 2, 3, generator=torch.Generator().manual_seed(length))
        assert torch.equal(map_rows(double, rows), 2 * rows.double())
    assert worked_on == [1, 1, 3]  # of three processes


def fail() -> None:
    def trouble() -> None:
        raise UserError("what the user did")

    try:
        broadcast_from_main(trouble)
    except UserError:
        assert os.environ["RANK"] == "0"
        raise SystemExit(7) from None


def test_sums_decisions_and_shares():
    assert processes(3, agree) == [0, 0, 0]
    assert processes(3, fail) == [7, 2, 2]  # the first tells, the others leave
    assert sum_over_processes(2, 3) == [2, 3]
    assert gather(own_items([1, 2])) == [1, 2]


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


def workers_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """The processes that it has started, in the order of their ranks."""
    try:
        return list(map(int, Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


def wait_for(happened: Callable[[], Any], *launchers: subprocess.Popen[bytes]) -> None:
    while not happened():
        for launcher in launchers:
            assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds workers by /proc")


@pytest.mark.torture
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


@pytest.mark.torture
@needs_proc
def test_a_worker_that_hangs_meets_a_timeout_and_one_that_dies_is_named(tmp_path, start):
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


@pytest.mark.torture
@needs_proc
def test_a_signal_to_all_saves_once_and_the_job_goes_on_with_any_number(tmp_path, start):
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
