"""Samples of a vocabulary: what is in them, and that sums over them are on average those over the vocabulary."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from translator.training.loss import Projection, Sample, draw, projected_cross_entropy


@given(st.data())
def test_a_sample_holds_the_targets_and_others_each_once(data):
    vocabulary = data.draw(st.integers(2, 60))
    size = data.draw(st.integers(1, vocabulary - 1))
    targets = torch.tensor(data.draw(st.lists(st.integers(0, vocabulary - 1), max_size=size)), dtype=torch.long)
    pieces, stand_for, numbers = draw(targets, vocabulary, size)
    assert len(set(pieces.tolist())) == len(pieces) == size
    assert torch.equal(numbers[pieces], torch.arange(size))
    assert torch.equal(pieces[numbers[targets]], targets)
    assert (stand_for[numbers[targets]] == 1).all()
    assert (stand_for >= 1).all()


def samples(targets: Tensor, vocabulary: int, size: int, number: int) -> list[Sample]:
    torch.manual_seed(1)
    return [draw(targets, vocabulary, size) for _ in range(number)]


@pytest.mark.parametrize("size", [3, 12, 39])
def test_sampled_sum_is_unbiased(size):
    values = torch.rand(40, generator=torch.Generator().manual_seed(2))
    estimates = torch.stack([(s.weights * values[s.pieces]).sum() for s in samples(torch.tensor([7, 7, 30]), 40, size, 3000)])
    assert abs(estimates.mean() - values.sum()) < 4 * estimates.std() / 3000**0.5
    assert estimates.std() > 0


def test_frequent_pieces_are_drawn_more_often():
    drawn = torch.zeros(1000)
    for sample in samples(torch.tensor([999]), 1000, 100, 300):
        drawn[sample.pieces] += 1
    assert drawn[999] == 300
    assert drawn[:20].mean() > 3 * drawn[100:200].mean() > 9 * drawn[800:999].mean() > 0


def example() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(24, 8, generator=generator).requires_grad_()
    weight = torch.randn(200, 8, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(20, (12,), generator=generator)


@pytest.mark.parametrize("options", [
    {}, {"smoothing": 0.2}, {"smoothing": 0.2, "r_drop": 2.0}, {"smoothing": 0.2, "bias": torch.linspace(-2, 2, 200)},
    {"teachers": [Projection(torch.eye(12, 5), torch.linspace(-2, 2, 1000).sin().view(200, 5), torch.linspace(2, -2, 200))],
     "distillation": 0.7}],
    ids=["plain", "smoothed", "R-Drop", "bias", "teacher"])
def test_larger_samples_come_closer_to_the_full_loss(options):
    hidden, weight, targets = example()

    def of(among: int) -> Tensor:
        loss, nll = projected_cross_entropy(hidden, weight, targets, passes=2, sample=among, **options)
        return torch.cat([loss[None], nll[None], *(g.flatten() for g in torch.autograd.grad(loss, (hidden, weight)))])

    exact = of(0)
    torch.manual_seed(1)
    distances = [torch.stack([(of(among) - exact).abs() for _ in range(40)]).mean(0) for among in (60, 150, 199, 200, 10_000)]
    for farther, nearer in zip(distances[:3], distances[1:4], strict=True):
        assert nearer[0] < farther[0] / 2
        assert nearer[1:].norm() < farther[1:].norm() / 2
    for distance in distances[3:]:  # the whole vocabulary: no sample
        assert not distance.any()


def test_gradients_are_those_of_the_estimate():
    """Autograd's, of logits to which the logarithm of what a word stands for is added."""
    hidden, weight, targets = example()
    torch.manual_seed(1)
    ours, likelihood = projected_cross_entropy(hidden[:12], weight, targets, smoothing=0.2, sample=50)
    torch.manual_seed(1)
    pieces, stand_for, numbers = draw(targets, 200, 50)
    logits = hidden[:12] @ weight[pieces].T
    log_normaliser = (logits + stand_for.log()).logsumexp(1)
    correct = logits.gather(1, numbers[targets][:, None])[:, 0]
    uniform = logits @ stand_for / stand_for.sum()
    expected = (log_normaliser - 0.8 * correct - 0.2 * uniform).sum()
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(likelihood, (log_normaliser - correct).sum().detach())
    torch.testing.assert_close(
        torch.autograd.grad(ours, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("among", [5, 30, 31])
def test_sample_grows_to_hold_all_targets(among):
    torch.manual_seed(3)
    hidden, weight, targets = 0.5 * torch.randn(30, 8), torch.randn(200, 8), torch.arange(170, 200)
    exact, _ = projected_cross_entropy(hidden, weight, targets)
    estimates = [projected_cross_entropy(hidden, weight, targets, sample=among)[0] for _ in range(100)]
    assert torch.stack(estimates).mean().item() == pytest.approx(exact.item(), rel=0.05)
