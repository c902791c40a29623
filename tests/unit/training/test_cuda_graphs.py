"""Work that is recorded for each shape of its inputs: when it is, what is replayed, and updates made of it.

On a CPU a recording is the work itself, done on the inputs that a recording holds; tests/system/test_gpu.py has real ones.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from tests.support.models import batch_of, teacher_of, updater_of
from translator.runtime.device import OutOfMemory
from translator.training import cuda_graphs as replay
from translator.training import updater
from translator.training.cuda_graphs import Recordings, Work
from translator.training.updater import Step, Threads, Updater

CPU = torch.device("cpu")


class Pool:
    """A pool of memory's stand-in: as with PyTorch's, nothing can be recorded in it once all that was has been let go."""

    def __init__(self) -> None:
        self.recordings: weakref.WeakSet[HeldWork] = weakref.WeakSet()
        self.used = False

    def take(self, recording: HeldWork) -> None:
        assert self.recordings or not self.used
        self.recordings.add(recording)
        self.used = True


class HeldWork:
    """A recording's stand-in."""

    def __init__(self, work: Work, inputs: Sequence[Tensor], device: torch.device, pool: Pool) -> None:
        pool.take(self)
        self.work = work
        self.inputs = [torch.full_like(x, 77) for x in inputs]  # what it holds before its first replay

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for held, x in zip(self.inputs, inputs, strict=True):
            held.copy_(x)
        return self.work(*self.inputs)


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, ...]]:
    """The shapes that were recorded, in order."""
    shapes: list[tuple[torch.Size, ...]] = []

    class Recording(HeldWork):
        def __init__(self, work: Work, inputs: Sequence[Tensor], *others: Any) -> None:
            shapes.append(tuple(x.shape for x in inputs))
            super().__init__(work, inputs, *others)

    monkeypatch.setattr(replay, "Recording", Recording)
    return shapes


@pytest.fixture(autouse=True)
def _no_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", Pool)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, Mock())


def doubled(*inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(2 * x for x in inputs)


def two() -> tuple[Tensor, ...]:
    return (torch.full((2,), 2.0),)


def test_a_shape_is_recorded_the_second_time_and_then_replayed(recorded):
    recordings = Recordings(CPU)
    for number, size in enumerate((3, 3, 3, 5, 3, 5, 5)):
        x, y = torch.full((size,), float(number)), torch.full((2, size), -float(number))
        for ours, expected in zip(recordings.do(doubled, x, y), doubled(x, y), strict=True):
            torch.testing.assert_close(ours, expected)
    assert recorded == [((3,), (2, 3)), ((5,), (2, 5))]


def test_different_work_has_recordings_of_its_own(recorded):
    recordings = Recordings(CPU)
    for _ in range(3):
        assert recordings.do(two)[0].tolist() == [2, 2]
        assert recordings.do(doubled) == ()
    assert recorded == [(), ()]


def test_graph_is_replayed_until_its_inputs_change(recorded):
    recordings = Recordings(CPU)
    for given, known in ((1, 0), (1, 1), (1, 1), (2, 0), (2, 1), (1, 0)):
        recordings.depend_on(given)
        recordings.do(doubled, torch.ones(2))
        assert len(recordings) == known
    assert len(recorded) == 2


def test_only_so_many_recordings_are_kept(recorded, monkeypatch):
    monkeypatch.setattr(replay, "MOST_RECORDINGS", 2)
    recordings = Recordings(CPU)
    for size in (1, 2, 3) * 4:
        assert torch.equal(recordings.do(doubled, torch.ones(size))[0], torch.full((size,), 2.0))
    assert recorded == [((1,),), ((2,),)]


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")], ids=str)
def test_without_memory_for_recordings_work_is_done_as_it_comes(error, monkeypatch, capsys):
    monkeypatch.setattr(replay, "Recording", Mock(side_effect=error))
    recordings = Recordings(CPU)
    for number in range(4):
        assert recordings.do(doubled, torch.tensor(number))[0] == 2 * number
    assert capsys.readouterr().err.count("train.cuda_graphs") == 1
    assert replay.Recording.call_count == 1  # type: ignore[attr-defined]


def test_what_cannot_be_recorded_for_another_reason_is_told(monkeypatch):
    monkeypatch.setattr(replay, "Recording", Mock(side_effect=RuntimeError("operation not permitted")))
    recordings = Recordings(CPU)
    recordings.do(doubled, torch.ones(2))
    with pytest.raises(RuntimeError, match="not permitted"):
        recordings.do(doubled, torch.ones(2))


def as_on_a_gpu(made: Updater) -> Updater:
    """Updates are replayed, and batches lengthened to be of few shapes, as where there is a GPU."""
    made._recordings = Recordings(CPU)
    made._inputs = lambda batch: tuple(map(made._padded, (batch.source, batch.target_in, batch.target_out)))
    return made


BATCHES = [batch_of((7, 9), (5, 3), seed=1), batch_of((13, 12), (2, 2), seed=2), batch_of((9, 5), seed=3)]
UPDATES = [[batch] for batch in BATCHES * 3] + [BATCHES] * 2
RATES = [1e-3 * (1 + number % 3) for number in range(len(UPDATES))]


def steps_of(made: Updater) -> list[Step]:
    return [made.step(batches, rate) for batches, rate in zip(UPDATES, RATES, strict=True)]


def assert_alike(ours: Sequence[Step], theirs: Sequence[Step]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert dataclasses.astuple(one) == pytest.approx(dataclasses.astuple(other), rel=1e-4)


@pytest.mark.parametrize("options", [
    (), ("train.r_drop=5",), ("train.r_drop=5", "train.r_drop_through=decoder"), ("optim=adamw",),
    ("optim.clip_norm=null", "train.label_smoothing=0")], ids=str)
@pytest.mark.parametrize("model", [
    {}, {"positions": "learned", "max_positions": 13}, {"positions": "rotary", "output_bias": True}], ids=str)
def test_replayed_updates_are_those_asked_for_one_by_one(options, model, recorded):
    plain, replayed = updater_of(*options, **model), as_on_a_gpu(updater_of(*options, **model))
    assert_alike(steps_of(replayed), steps_of(plain))
    assert len(recorded) == 5  # three batches, clipping, and the optimizers' step
    logits = [made.model.eval()(BATCHES[0].source, BATCHES[0].target_in) for made in (replayed, plain)]
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-4)


def test_a_teacher_is_replayed_with_its_student(recorded):
    plain, replayed = updater_of(teacher=teacher_of(5)), as_on_a_gpu(updater_of(teacher=teacher_of(5)))
    assert_alike(steps_of(replayed), steps_of(plain))
    assert len(recorded) == 5
    tables = [part.table for part in replayed._sinusoidal]
    assert len(tables) == 4  # of source and target, for both models: a longer one has other graphs


def test_batches_are_of_few_shapes(recorded):
    made = as_on_a_gpu(updater_of())
    for source in range(1, 21):
        made.step([batch_of((source, 21 - source), (1, 1), seed=source)], 1e-3)
    of_batches = [shapes for shapes in recorded if len(shapes) == 4]
    assert 0 < len(of_batches) == len(set(of_batches)) <= 20 / updater.LENGTHS_TOGETHER + 1


def test_learned_positions_are_never_left():
    made = updater_of(positions="learned", max_positions=13)
    for length, wanted in ((7, 8), (12, 12), (13, 13), (15, 15)):  # the last is refused by the model itself
        assert made._padded(torch.ones(2, length, dtype=torch.long)).shape == (2, wanted)


def test_updates_continue_from_a_loaded_state(recorded):
    made = as_on_a_gpu(updater_of())
    steps = [made.step([BATCHES[0]], 1e-3) for _ in range(3)]
    weights = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in made.state().items()}
    expected = [made.step([BATCHES[0]], 1e-3) for _ in range(3)]
    made.model.load_state_dict(weights)
    made.load_state(state)
    before = len(recorded)
    assert [made.step([BATCHES[0]], 1e-3) for _ in range(3)] == expected
    assert steps[0].loss > expected[0].loss
    assert len(recorded) == before + 3  # what was recorded knew where the old state lay


def test_longer_position_table_gets_its_own_graph(recorded):
    made = as_on_a_gpu(updater_of())
    for _ in range(3):
        made.step([BATCHES[0]], 1e-3)
    assert made._recordings
    made.step([batch_of((700, 3))], 1e-3)
    made.step([BATCHES[0]], 1e-3)
    assert not made._recordings


def test_recordings_make_room_for_what_is_asked_for_one_by_one(monkeypatch, capsys):
    plain, made = updater_of(), as_on_a_gpu(updater_of())
    for _ in range(3):
        assert_alike([made.step([BATCHES[0]], 1e-3)], [plain.step([BATCHES[0]], 1e-3)])
    work = made._add_gradients

    def short_of_memory(*inputs: Tensor) -> tuple[Tensor, ...]:
        results = work(*inputs)  # what it has left by then must not count
        if made._recordings:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return results

    monkeypatch.setattr(made, "_add_gradients", short_of_memory)
    assert_alike([made.step(BATCHES, 1e-3) for _ in range(2)], [plain.step(BATCHES, 1e-3) for _ in range(2)])
    assert capsys.readouterr().err.count("train.cuda_graphs") == 1

    def always_short(*_: Tensor) -> tuple[Tensor, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(made, "_add_gradients", always_short)
    with pytest.raises(OutOfMemory, match=r"train\.batch_tokens"):
        made.step(BATCHES, 1e-3)


def test_a_batch_short_of_memory_is_halved_after_the_first(monkeypatch, capsys):
    plain, made = updater_of(), updater_of()
    work, most = made._add_gradients, len(BATCHES[0].source) // 2

    def short_of_memory(source: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        results = work(source, *others)  # what it has left by then must not count
        if len(source) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return results

    monkeypatch.setattr(made, "_threads", Threads(1))
    monkeypatch.setattr(made, "_add_gradients", short_of_memory)
    with pytest.raises(OutOfMemory, match=r"train\.batch_tokens"):
        made.step(BATCHES, 1e-3)
    made._zero_gradients()
    small = batch_of((3, 4))
    assert_alike([made.step([batches], 1e-3) for batches in (small, *BATCHES)], [
        plain.step([batches], 1e-3) for batches in (small, *BATCHES)])
    assert "smaller batches" in capsys.readouterr().err
