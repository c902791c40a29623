"""Rows of real tokens: what they hold, and that nothing comes of padding."""

from __future__ import annotations

import pytest
import torch

from translator.model.unpadded import ROWS_TOGETHER, TokenRows, token_rows

REAL = torch.arange(7) < torch.tensor([3, 7, 1, 5])[:, None]


def test_they_hold_the_real_tokens_first_and_in_order():
    x = torch.randn(4, 7, 6)
    rows = TokenRows(REAL, heads=2)
    packed = rows.pack(x)
    assert rows.count == 16
    assert torch.equal(packed[:16], x[REAL])
    assert (packed[16:] == x[0, 3]).all(), "the rest is the first token of padding"


@pytest.mark.parametrize("lengths", [[3, 7, 1, 5], [7, 7, 7, 6], [7, 7, 0, 1], [0, 0, 0, 0]])
def test_there_are_few_numbers_of_them_and_one_of_padding_at_least(lengths):
    rows = TokenRows(torch.arange(7) < torch.tensor(lengths)[:, None], heads=2)
    packed = rows.pack(torch.randn(4, 7, 6))
    assert rows.count == sum(lengths)
    assert len(packed) % ROWS_TOGETHER == 0
    assert rows.count < len(packed) <= rows.count + ROWS_TOGETHER


def test_heads_are_those_of_the_sentences_and_come_back():
    x = torch.randn(4, 7, 6)
    rows = TokenRows(REAL, heads=2)
    packed = rows.pack(x)
    heads = rows.split_heads(packed)  # (4, 2, 7, 3)
    assert torch.equal(heads.transpose(1, 2).flatten(2)[REAL], x[REAL])
    assert torch.equal(rows.join_heads(heads), packed)


def test_gradients_are_those_of_indexing():
    x = torch.randn(4, 7, 6, requires_grad=True)
    rows = TokenRows(REAL, heads=2)
    weights = torch.randn(16, 6)
    there_and_back = rows.join_heads(rows.split_heads(rows.pack(x)).exp())[: rows.count]
    [given] = torch.autograd.grad((there_and_back * weights).sum(), x)
    [expected] = torch.autograd.grad((x.exp()[REAL] * weights).sum(), x)
    torch.testing.assert_close(given, expected)


def test_without_padding_there_are_none():
    assert token_rows(torch.ones(4, 7, dtype=torch.bool), heads=2) is None
    assert token_rows(REAL, heads=2) is not None
