"""Several processes train as one: the same losses and weights, whatever their number and however they hold the model."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import PAIRS, model_config
from tests.test_trainer import metrics, options, rows
from translator.checkpoint import RunFolder, load_tensors
from translator.config import RunConfig
from translator.data import Corpus
from translator.distributed import decide, gather, share, together, totals
from translator.errors import UserError
from translator.interruption import Interrupted
from translator.tokenizer import Tokenizer
from translator.trainer import Trainer, new_model


def processes(count: int, work: Callable[..., None], *arguments: Any) -> list[int]:
    """Run `work` in so many processes that know each other, as torchrun starts them; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")  # quick: nothing is imported anew, and one thread forks well
    children = [context.Process(target=_child, args=(rank, count, port, work, arguments)) for rank in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def _child(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
    with together(minutes=1):
        work(*arguments)


def train(config: RunConfig, folder: Path, tokenizer: Tokenizer) -> None:
    corpus = Corpus(
        rows(tokenizer, PAIRS[8:]), rows(tokenizer, PAIRS[:7]), rows(tokenizer, PAIRS[:8]), tokenizer, tokenizer, {})
    run = RunFolder(folder)
    decide(lambda: run.create(config, (tokenizer, tokenizer), {}))
    Trainer(config, run, corpus, new_model(config, corpus), echo, precision=torch.float32).fit()


def echo(texts: Any) -> list[str]:
    return [text.replace("She sees", "Sie sieht") for text in texts]


def without_dropout(**train: object) -> RunConfig:
    config = options(accumulation=4, batch_tokens=130, max_updates=10, metric="loss", average="last", **train)
    # Adam divides tiny gradients by their own size, rounding and all: a larger eps leaves what is to be compared.
    optim = dataclasses.replace(config.optim, ema_decay=0.9, eps=1e-3)
    return dataclasses.replace(config, model=model_config(), optim=optim)


def result(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    run = RunFolder(folder)
    weights, training, _ = run.load_checkpoint(10)
    model = {f"model.{name}": weight for name, weight in load_tensors(run.model_file).items()}
    lines = metrics(type("Trained", (), {"folder": run}))  # type: ignore[arg-type]
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
    train(without_dropout(), folder, tokenizer)
    return folder


@pytest.mark.parametrize(("count", "parallel", "optimizer"), [(2, "ddp", "muon"), (4, "ddp", "muon"), (2, "fsdp", "muon")])
def test_any_number_of_processes_makes_the_same_run(alone, tmp_path, tokenizer, count, parallel, optimizer):
    """Batches of an epoch that are no multiple of the processes, and sentences of validation that are none either."""
    assert processes(count, train, without_dropout(parallel=parallel), tmp_path / "run", tokenizer) == [0] * count
    assert_close(tmp_path / "run", alone)


def test_checkpoints_move_between_numbers_of_processes_and_ways_to_hold_a_model(alone, tmp_path, tokenizer):
    first = without_dropout()
    for updates, count, parallel in ((3, 2, "fsdp"), (5, 1, "ddp"), (8, 3, "ddp"), (10, 2, "fsdp")):
        config = dataclasses.replace(first, train=dataclasses.replace(first.train, max_updates=10, parallel=parallel))
        assert processes(count, train_until, config, tmp_path / "run", tokenizer, updates) == [0] * count
        assert RunFolder(tmp_path / "run").resumable()[0] == updates
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


def agree() -> None:
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert totals(rank, 1) == [sum(range(count)), count]
    assert decide(lambda: rank) == 0
    items = list(range(10))
    assert gather([item * item for item in share(items)]) == [item * item for item in items]


def fail() -> None:
    def trouble() -> None:
        raise UserError("what the user did")

    try:
        decide(trouble)
    except UserError:
        assert os.environ["RANK"] == "0"
        raise SystemExit(7) from None


def test_sums_decisions_and_shares():
    assert processes(3, agree) == [0, 0, 0]
    assert processes(3, fail) == [7, 2, 2]  # the first tells, the others leave
    assert totals(2, 3) == [2, 3]
    assert gather(share([1, 2])) == [1, 2]
