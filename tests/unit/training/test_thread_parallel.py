"""An update by threads that each have a part of a batch: the gradient of the whole, and every time the same."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from tests.support.models import batch_of, updater_of
from translator.data.batching import Batch
from translator.model.cpu_operations import dropout
from translator.runtime.device import OutOfMemory, Precision
from translator.training import updater as threads
from translator.training.updater import Threads, Updater


@pytest.fixture(autouse=True)
def _three(several_threads) -> None:
    several_threads(3)


def batch(sentences: int, longest: int, seed: int = 1) -> Batch:
    return dataclasses.replace(batch_of(*((longest - i % 3, longest - i % 2) for i in range(sentences)), seed=seed), seed=seed)


def gradients(made: Updater, batches: list[Batch]) -> tuple[list[torch.Tensor], list[float]]:
    losses = made._gradients(batches, sum(batch.num_tokens for batch in batches))
    left = [p.grad for p in made.model.parameters()]
    made._zero_gradients()
    return left, [float(loss) for loss in losses]


@pytest.mark.parametrize(("precision", "rounding"), [(Precision.FP32, 1e-6), (Precision.BF16, 1e-3)])
@pytest.mark.parametrize("options", [(), ("train.r_drop=1",), ("train.r_drop=1", "train.r_drop_through=decoder")])
@pytest.mark.parametrize("model", [{}, {"tied": "none", "positions": "relative"}])
def test_parts_make_the_gradient_of_the_whole(options, model, precision, rounding):
    batches = [batch(7, 9, seed=1), batch(4, 5, seed=2)]
    by_threads, alone = (updater_of("train.sampled_softmax=0", *options, precision=precision, **model) for _ in range(2))
    alone._threads = Threads(1)
    for one in (by_threads, alone):
        one._parallel.train()
    made, losses = gradients(by_threads, batches)
    expected, expected_losses = gradients(alone, batches)
    assert losses == pytest.approx(expected_losses, rel=10 * rounding)
    for gradient, other in zip(made, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=rounding, rtol=100 * rounding)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_dropout_depends_only_on_the_batch(precision):
    batches = [batch(8, 20, seed=1), batch(8, 20, seed=2)]
    made = updater_of("train.sampled_softmax=16", precision=precision, dropout=0.3)
    made._parallel.train()
    first, losses = gradients(made, batches)
    for _ in range(5):
        torch.rand(7)
        again, same = gradients(made, batches)
        assert same == losses
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    _, other = gradients(made, [dataclasses.replace(one, seed=one.seed + 1) for one in batches])
    assert other != losses


def test_no_two_parts_draw_the_same():
    made = Threads(3)
    masks = made.each(lambda part: dropout(torch.ones(1000), 0.5), made.parts(batch(6, 5), 1))
    assert len({tuple(mask.tolist()) for mask in masks}) == 3


def test_each_sentence_is_in_one_part():
    whole = batch(8, 5)
    parts = Threads(3).parts(whole, 1)
    for name in ("source", "target_in", "target_out"):
        of_all = getattr(whole, name)
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), torch.cat([of_all[n::3] for n in range(3)]))
    assert sum(part.num_tokens for part in parts) == whole.num_tokens
    assert {len(part.source) for part in parts} == {2, 3}


def test_small_batches_stay_whole_and_all_where_threads_are_many(monkeypatch):
    assert len(Threads(8).parts(batch(9, 5), 1)) == 8
    assert len(Threads(9).parts(batch(9, 5), 1)) == 1
    monkeypatch.setattr(threads, "LEAST_POSITIONS", 10)
    whole = batch(4, 5)
    assert [len(Threads(count).parts(whole, passes)) for count, passes in ((1, 1), (2, 1), (3, 1), (3, 2), (5, 9))] == [
        1, 2, 1, 3, 1]


def test_each_works_alone_and_others_have_what_they_had():
    made, meeting = Threads(3), threading.Barrier(3, timeout=60)

    def counts(part: Batch) -> int:
        meeting.wait()  # at the same time
        return torch.get_num_threads()

    assert made.each(counts, made.parts(batch(6, 5), 1)) == [1, 1, 1]
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [torch.get_num_threads()] == [3]


def test_memory_that_a_part_lacks_is_told(monkeypatch):
    made = updater_of()

    def lacking(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(made._loss, "forward", lacking)
    with pytest.raises(OutOfMemory, match=r"lower train\.batch_tokens"):
        made.step([batch(6, 5)], 1e-3)


@pytest.mark.parametrize(("choice", "count"), [
    ({}, 3), ({"precision": Precision.BF16}, 3), ({"precision": Precision.FP16}, 1), ({"attention_dropout": 0.1}, 1)])
def test_what_draws_elsewhere_or_scales_its_loss_is_not_split(choice, count):
    assert updater_of(**choice)._threads.count == count
