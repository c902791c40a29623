"""What an update's batches go through: how often, and how the passes of R-Drop and SimCut differ."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.support.models import batch_of, updater_of
from translator.model.attention import padding_mask
from translator.runtime.seeds import seed_thread
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID
from translator.training import updater

BATCH = batch_of((7, 5), (4, 6), (6, 6))


def step_of(*options: str, dropout: float = 0.0) -> tuple[float, float]:
    step = updater_of("train.sampled_softmax=0", *options, dropout=dropout).step([BATCH], 1e-3)
    return step.loss, step.gradient_norm


@pytest.mark.parametrize(("options", "encoded", "decoded"), [
    ((), 3, 3), (("train.r_drop=5",), 6, 6), (("train.r_drop=5", "train.r_drop_through=decoder"), 3, 6),
    (("train.r_drop_through=decoder",), 3, 3), (("train.sim_cut=3", "train.r_drop_through=decoder"), 6, 6)])
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


def test_sim_cut_compares_with_a_pass_without_tokens(monkeypatch):
    """Gao et al. 2022, with all tokens cut except the ends."""
    monkeypatch.setattr(updater, "CUT", 1.0)
    made = updater_of("train.sampled_softmax=0", "train.sim_cut=3", "train.label_smoothing=0")
    made.model.train()
    loss, nll = made.loss(BATCH)
    model = made.model.eval()
    source, target = ((ids == BOS_ID) | (ids == EOS_ID) for ids in (BATCH.source, BATCH.target_in))
    hidden, _ = model.decode(
        BATCH.target_in, model.encode(BATCH.source, source.float()), padding_mask(BATCH.source, PAD_ID), kept=target.float())
    plain, cut = (logits[BATCH.real].log_softmax(-1) for logits in (model(BATCH.source, BATCH.target_in), model.output(hidden)))
    torch.testing.assert_close(nll, F.nll_loss(plain, BATCH.target_out[BATCH.real], reduction="sum").detach())
    torch.testing.assert_close(loss, nll + 3 * F.kl_div(cut, plain, log_target=True, reduction="sum"), rtol=1e-4, atol=0)


def test_cuts_follow_from_the_seed():
    ids = torch.full((100, 200), 7)
    ids[:, 0], ids[:, -1] = BOS_ID, EOS_ID
    drawn = []
    for seed in (1, 1, 2):
        seed_thread(seed)
        drawn.append(updater._kept(ids))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    first, second = drawn[0].chunk(2)
    assert first.all()
    assert second[:, [0, -1]].all()
    assert 0.04 < 1 - second[:, 1:-1].mean() < 0.06
