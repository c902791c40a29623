"""Label smoothing against its definition, and sums that add up."""

from __future__ import annotations

import pytest
import torch

from translator.loss import label_smoothed_cross_entropy, negative_log_likelihood


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_is_the_cross_entropy_to_smoothed_targets(smoothing):
    torch.manual_seed(0)
    logits, targets = torch.randn(12, 7), torch.randint(0, 7, (12,))
    smoothed = torch.full((12, 7), smoothing / 7)
    smoothed[torch.arange(12), targets] += 1 - smoothing
    expected = -(smoothed * logits.log_softmax(-1)).sum()
    loss = label_smoothed_cross_entropy(logits, targets, smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    parts = [
        label_smoothed_cross_entropy(logits[rows], targets[rows], smoothing=smoothing) for rows in (slice(5), slice(5, 12))]
    torch.testing.assert_close(sum(parts), expected)


def test_without_smoothing_it_is_the_negative_log_likelihood():
    logits, targets = torch.randn(5, 4).bfloat16(), torch.tensor([0, 1, 2, 3, 0])
    expected = -logits.float().log_softmax(-1)[torch.arange(5), targets].sum()
    torch.testing.assert_close(negative_log_likelihood(logits, targets), expected)
    torch.testing.assert_close(label_smoothed_cross_entropy(logits, targets, smoothing=0.0), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_is_the_distance_to_the_smoothed_target(smoothing, dtype):
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5).to(dtype).requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = label_smoothed_cross_entropy(logits, targets, smoothing=smoothing)
    assert loss.dtype == torch.float32
    loss.backward()
    smoothed = torch.full((6, 5), smoothing / 5)
    smoothed[torch.arange(6), targets] += 1 - smoothing
    expected = logits.detach().float().softmax(-1) - smoothed
    torch.testing.assert_close(logits.grad.float(), expected, atol=1e-6 if dtype == torch.float32 else 5e-3, rtol=0)


def test_the_unsmoothed_figure_takes_no_part_in_training():
    assert not negative_log_likelihood(torch.randn(2, 3, requires_grad=True), torch.tensor([0, 1])).requires_grad
