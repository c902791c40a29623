"""What an update's batches go through: how often, and how the passes of R-Drop and SimCut differ."""

from __future__ import annotations

import pytest

from tests.support.models import batch_of, updater_of

BATCH = batch_of((7, 5), (4, 6), (6, 6))


def step_of(*options: str, dropout: float = 0.0) -> tuple[float, float]:
    step = updater_of("train.sampled_softmax=0", *options, dropout=dropout).step([BATCH], 1e-3)
    return step.loss, step.gradient_norm


@pytest.mark.parametrize(("options", "encoded", "decoded"), [
    ((), 3, 3), (("train.r_drop=5",), 6, 6), (("train.r_drop=5", "train.r_drop_through=decoder"), 3, 6),
    (("train.r_drop_through=decoder",), 3, 3)])
def test_two_passes_decode_twice_and_encode_as_asked(options, encoded, decoded):
    made, seen = updater_of("train.sampled_softmax=0", *options, dropout=0.3), list[int]()
    for embedding in (made.model.source_embedding, made.model.target_embedding):
        embedding.register_forward_pre_hook(lambda embedding, inputs: seen.append(len(inputs[0])))
    made.step([BATCH], 1e-3)
    assert seen == [encoded, decoded]
    made.loss(BATCH)  # of a model that is being trained, as it is
    assert seen[2:] == [encoded, decoded]
    made.model.eval()
    made.loss(BATCH)
    assert seen[4:] == [3, 3]


def test_without_dropout_all_passes_are_one():
    plain = step_of()
    for options in (("train.r_drop=5",), ("train.r_drop=5", "train.r_drop_through=decoder")):
        assert step_of(*options) == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("through", ["model", "decoder"])
def test_with_dropout_passes_disagree(through):
    loss, _ = step_of("train.r_drop=5", f"train.r_drop_through={through}", dropout=0.3)
    little, _ = step_of("train.r_drop=0.001", f"train.r_drop_through={through}", dropout=0.3)
    assert loss > little + 0.01
