"""Several processes train as one: the same losses and weights, for any number of them and any sharding."""

from __future__ import annotations

import dataclasses
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes import processes
from tests.support.trainings import four_batches_an_update, read_metrics, train_toy
from translator.config.options import RunConfig
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import load_tensors
from translator.runtime.distributed import (
    broadcast_from_main,
    full_tensors_on_main,
    gather,
    is_main_process,
    map_rows,
    own_items,
    shard_module,
    sum_over_processes,
)
from translator.runtime.errors import Interrupted, UserError
from translator.text.tokenizer import Tokenizer
from translator.training.trainer import Trainer


def result(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    run = RunFolder(folder)
    weights, training, _ = run.checkpoints.load(10)
    model = {f"model.{name}": weight for name, weight in load_tensors(run.model_file).items()}
    lines = read_metrics(run)
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
    train_toy(four_batches_an_update(), folder, tokenizer)
    return folder


@pytest.mark.parametrize(("count", "parallel"), [(2, "ddp"), (4, "ddp"), (2, "fsdp")])
def test_any_number_of_processes_makes_the_same_run(alone, tmp_path, tokenizer, count, parallel):
    """With dropout, and neither the batches of an epoch nor the sentences of validation a multiple of the processes."""
    assert processes(count, train_toy, four_batches_an_update(parallel=parallel), tmp_path / "run", tokenizer) == [0] * count
    assert_close(tmp_path / "run", alone)


def test_checkpoints_move_between_process_counts_and_sharding(alone, tmp_path, tokenizer):
    first = four_batches_an_update()
    for updates, count, parallel in ((3, 2, "fsdp"), (5, 1, "ddp"), (8, 3, "ddp"), (10, 2, "fsdp")):
        config = dataclasses.replace(first, train=dataclasses.replace(first.train, max_updates=10, parallel=parallel))
        assert processes(count, train_until, config, tmp_path / "run", tokenizer, updates) == [0] * count
        assert RunFolder(tmp_path / "run").checkpoints.resumable()[0] == updates
    assert_close(tmp_path / "run", alone)


def train_until(config: RunConfig, folder: Path, tokenizer: Tokenizer, updates: int) -> None:
    """Train until one process, the last, gets the signal to stop before that update."""
    update = Trainer._update

    def told(trainer: Trainer) -> None:
        update(trainer)
        if trainer.state.update == updates < 10 and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer._update = told  # type: ignore[method-assign]
    with suppress(Interrupted):
        train_toy(config, folder, tokenizer)


def keep_wholes() -> None:
    torch.manual_seed(1)
    module = torch.nn.Linear(4, 3)
    expected = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    if not is_main_process():
        torch.nn.init.zeros_(module.weight)  # as it may have come out otherwise on another machine
    kept = full_tensors_on_main(dict(shard_module(module, [], minutes=1).named_parameters()) | {"count": torch.ones(())})
    assert all(torch.equal(kept[name], expected[name]) for name in expected) if is_main_process() else list(kept) == ["count"]


def test_only_the_main_process_gathers_full_tensors():
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

