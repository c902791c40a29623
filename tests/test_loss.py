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
    parts = [label_smoothed_cross_entropy(logits[rows], targets[rows], smoothing=smoothing) for rows in (slice(5), slice(5, 12))]
    torch.testing.assert_close(sum(parts), expected)


def test_without_smoothing_it_is_the_negative_log_likelihood():
    logits, targets = torch.randn(5, 4).bfloat16(), torch.tensor([0, 1, 2, 3, 0])
    expected = -logits.float().log_softmax(-1)[torch.arange(5), targets].sum()
    torch.testing.assert_close(negative_log_likelihood(logits, targets), expected)
    torch.testing.assert_close(label_smoothed_cross_entropy(logits, targets, smoothing=0.0), expected)
