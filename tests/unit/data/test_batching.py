"""Batches keep their budget, lose nobody, and are a function of seed and epoch."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpora import PAIRS
from tests.support.paths import SHARED_DATASETS
from translator.data.batching import Batch, BatchSource, collate, plan_batches
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200)


def batches(source: BatchSource, epoch: int) -> list[Batch]:
    return [source.batch(epoch, number) for number in range(len(source.plan(epoch)))]


def padding_of(plan: list[np.ndarray], source: np.ndarray, target: np.ndarray) -> float:
    cells = sum(len(rows) * (source[rows].max() + target[rows].max()) for rows in plan)
    return 1 - (source.sum() + target.sum()) / cells


@given(LENGTHS, st.integers(60, 500), st.integers(0, 3))
def test_every_sentence_once_and_never_over_the_budget(lengths, max_tokens, epoch):
    source, target = np.array(lengths).T
    plan = plan_batches(source, target, max_tokens=max_tokens, seed=1, epoch=epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) * max(source[rows].max(), target[rows].max()) <= max_tokens


def test_a_plan_is_a_function_of_seed_and_epoch():
    source, target = np.random.default_rng(0).integers(3, 40, (2, 500))

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in plan_batches(source, target, max_tokens=300, seed=seed, epoch=epoch)]

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)


@pytest.mark.parametrize("max_tokens", [1024, 4096])
def test_padding_stays_under_five_percent(max_tokens):
    rng = np.random.default_rng(0)
    source = rng.gamma(7, 2, 20_000).astype(int) + 2
    target = np.maximum(2, source + rng.normal(0, 3, 20_000).astype(int))
    plan = plan_batches(source, target, max_tokens=max_tokens, seed=1, epoch=0)
    assert padding_of(plan, source, target) < 0.05


def test_equal_length_sources_are_batched_by_target_length():
    source, target = np.full(2000, 400), np.random.default_rng(0).integers(20, 150, 2000)
    assert padding_of(plan_batches(source, target, max_tokens=8192, seed=1, epoch=0), source, target) < 0.05


def test_padding_of_real_sentences_stays_under_five_percent():
    file = SHARED_DATASETS / "multi30k" / "train.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    source, target = (np.array([len(row[language].split()) + 1 for row in rows]) for language in ("en", "de"))
    plan = plan_batches(source, target, max_tokens=4096, seed=1, epoch=0)
    assert padding_of(plan, source, target) < 0.05


def test_collate_shifts_pads_and_counts():
    batch = collate([[5, 6, EOS_ID], [7, EOS_ID]], [[8, EOS_ID], [9, 10, 11, EOS_ID]])
    assert batch.source.tolist() == [[5, 6, EOS_ID], [7, EOS_ID, PAD_ID]]
    assert batch.target_in.tolist() == [[BOS_ID, 8, EOS_ID, PAD_ID], [BOS_ID, 9, 10, 11]]
    assert batch.target_out.tolist() == [[8, EOS_ID, PAD_ID, PAD_ID], [9, 10, 11, EOS_ID]]
    assert batch.num_tokens == int(batch.real.sum()) == 6
    assert batch.padding == pytest.approx(1 - 11 / 14)


def tokenised(tokenizer: Tokenizer) -> Dataset:
    source, target = (tokenizer.encode(side) for side in zip(*PAIRS, strict=True))
    return Dataset.from_dict({
        "source": [s for s, _ in PAIRS], "target": [t for _, t in PAIRS], "source_ids": source, "target_ids": target,
        "source_length": list(map(len, source)), "target_length": list(map(len, target))})


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_an_epoch_can_be_taken_up_anywhere(tokenizer, sampling):
    def source() -> BatchSource:
        return BatchSource(tokenised(tokenizer), (tokenizer, tokenizer), max_tokens=300, seed=1, sampling=sampling)

    whole = list(batches(source(), 3))
    rest = [source().batch(3, number) for number in range(2, len(source().plan(3)))]
    assert len(whole) > 4
    assert len(rest) == len(whole) - 2
    for a, b in zip(whole[2:], rest, strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target_out, b.target_out)


def test_sampled_batches_vary_keep_the_budget_and_the_text(tokenizer):
    source = BatchSource(tokenised(tokenizer), (tokenizer, tokenizer), max_tokens=300, seed=1, sampling=0.1)
    seen = set()
    for epoch in (0, 1):
        texts = []
        for batch in batches(source, epoch):
            assert max(batch.source.numel(), batch.target_out.numel()) <= 300
            texts += tokenizer.decode(batch.source.tolist())
            seen |= {tuple(row) for row in batch.source.tolist()}
        assert sorted(texts) == sorted(s for s, _ in PAIRS)
    assert len(seen) > 1.5 * len(PAIRS)


def test_batches_by_size(tokenizer):
    source = BatchSource(tokenised(tokenizer), (tokenizer, tokenizer), max_tokens=300, seed=1)
    cells = sorted(b.source.numel() + b.target_out.numel() for b in batches(source, 0))
    found = source.of_sizes(0, 0.0, 0.5, 1.0)
    expected = [cells[0], cells[round((len(cells) - 1) / 2)], cells[-1]]
    assert [batch.source.numel() + batch.target_out.numel() for batch in found] == expected


def test_a_sentence_past_the_budget_may_have_a_batch_to_itself():
    lengths = np.array([3, 50, 4, 60, 5, 3])
    plan = plan_batches(lengths, lengths[::-1].copy(), max_tokens=40, seed=1, epoch=0)
    assert sorted(np.concatenate(plan).tolist()) == list(range(6))
    longest = np.maximum(lengths, lengths[::-1])
    assert all(len(rows) == 1 or len(rows) * longest[rows].max() <= 40 for rows in plan)


def test_an_epoch_of_nothing_has_no_batches():
    assert plan_batches(np.array([], dtype=int), np.array([], dtype=int), max_tokens=10, seed=1, epoch=0) == []


@given(st.lists(st.tuples(*[st.lists(st.integers(4, 99), max_size=9)] * 2), min_size=1, max_size=8))
def test_collated_sentences_can_be_read_back(pairs):
    source, target = ([side + [EOS_ID] for side in sides] for sides in zip(*pairs, strict=True))
    batch = collate(source, target)
    assert [row[row != PAD_ID].tolist() for row in batch.source] == source
    assert [row[row != PAD_ID].tolist() for row in batch.target_out] == target
    assert (batch.target_in[:, 0] == BOS_ID).all()
    assert torch.equal(batch.target_in[:, 1:], batch.target_out[:, :-1])
    assert batch.num_tokens == sum(map(len, target))
    assert 0 <= batch.padding < 1


def test_a_sampled_segmentation_keeps_to_the_longest(tokenizer):
    dataset = tokenised(tokenizer)
    longest = max(max(dataset["source_length"]), max(dataset["target_length"]))
    source = BatchSource(dataset, (tokenizer, tokenizer), max_tokens=300, seed=1, longest=longest, sampling=0.1)
    batches = [source.batch(0, number) for number in range(len(source.plan(0)))]
    assert max(max(batch.source.size(1), batch.target_out.size(1)) for batch in batches) == longest


def test_sampling_is_a_function_of_seed_and_epoch(tokenizer):
    def rows(seed: int, epoch: int) -> set[tuple[int, ...]]:
        source = BatchSource(tokenised(tokenizer), (tokenizer, tokenizer), max_tokens=300, seed=seed, sampling=0.1)
        return {tuple(ids) for batch in batches(source, epoch) for ids in batch.target_out.tolist()}

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)


def test_a_sentence_is_segmented_anew_in_each_epoch(tokenizer):
    one = tokenised(tokenizer).select([0])
    source = BatchSource(one, (tokenizer, tokenizer), max_tokens=300, seed=1, sampling=0.1)
    assert len({tuple(batch.source[0].tolist()) for epoch in range(20) for batch in batches(source, epoch)}) > 1
