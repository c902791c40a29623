"""Token-budget batches as a deterministic plan, and their collation into tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from translator.runtime.errors import UserError
from translator.runtime.seeds import derive_seed
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer

# What a derived seed is for.
DROPOUT, SEGMENTATION = 1, 2
# Sentences on which the growth of sampled segmentations over the best ones is measured.
GROWTH_SAMPLE = 2000


@dataclass(frozen=True)
class Batch:
    """Padded sentence pairs: source (B, S); target_in (B, T) starts with BOS; target_out (B, T) ends with EOS."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    num_tokens: int  # real target tokens, EOS counted
    seed: int = 0  # of the dropout that it is trained with

    @property
    def real(self) -> Tensor:
        """Target positions that are not padding: (B, T)."""
        return self.target_out != PAD_ID

    @property
    def padding(self) -> float:
        """Share of padding in source and target together."""
        cells = self.source.numel() + self.target_out.numel()
        return 1 - (int((self.source != PAD_ID).sum()) + self.num_tokens) / cells

    def parts(self, count: int) -> list[Batch]:
        """Its sentences in so many parts, as many in each or nearly, padded as in the whole, with seeds of their own.

        They go to the parts in turn: as a batch's sentences stand by their lengths, all parts get about as many tokens.
        """
        sides = ((x[number::count] for x in (self.source, self.target_in, self.target_out)) for number in range(count))
        return [
            Batch(source, target_in, target_out, int((target_out != PAD_ID).sum()), derive_seed(self.seed, number))
            for number, (source, target_in, target_out) in enumerate(sides)]

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.source.to(device, non_blocking=True), self.target_in.to(device, non_blocking=True),
            self.target_out.to(device, non_blocking=True), self.num_tokens, self.seed)


def plan_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, *, max_tokens: int, seed: int, epoch: int, any_length: bool = False
) -> list[np.ndarray]:
    """The batches of one epoch, each an array of sentence indices: a function of the arguments alone.

    Sentences of like length share a batch; neither side of a batch, padded, holds more than `max_tokens`. Which
    sentences of like length meet, and the order of the batches, change from epoch to epoch. A sentence longer than
    that is refused or, with `any_length`, has a batch to itself.
    """
    longest = np.maximum(source_lengths, target_lengths)
    if not any_length and len(longest) and longest.max() > max_tokens:
        index = int(longest.argmax())
        raise UserError(f"train.batch_tokens={max_tokens} is less than the {longest[index]} tokens of sentence {index + 1}")
    rng = np.random.default_rng((seed, epoch))
    # By the longer side; among equals by which side that is, up and down in turn, so that neighbours are always alike; among
    # these by chance. All that and the index in one number: ten million such numbers are sorted in 0.2 s, their places in 2.
    difference = source_lengths - target_lengths
    side = np.where(longest % 2, difference, -difference).clip(-2048, 2047) + 2048
    order = longest.astype(np.int64) << 12 | side
    index_bits = len(order).bit_length()
    chance_bits = 63 - index_bits - int(order.max(initial=0)).bit_length()
    order <<= chance_bits
    order |= rng.integers(2**chance_bits, size=len(order))
    order <<= index_bits
    order |= np.arange(len(order))
    order.sort()
    order &= 2**index_bits - 1
    ends = _batch_ends(np.bincount(longest), max_tokens)
    return [order[ends[i - 1] if i else 0 : ends[i]] for i in rng.permutation(len(ends)).tolist()]


def _batch_ends(counts: np.ndarray, max_tokens: int) -> list[int]:
    """Where the batches of sentences in the order of their lengths end, each of as many as fit into it.

    counts: how many sentences have each length. Ten million pairs make a hundred thousand batches, but few lengths.
    """
    ends, start, end = list[int](), 0, 0  # start of the batch that is not yet full
    for length in np.flatnonzero(counts).tolist():
        first, end = end, end + int(counts[length])
        fit = max(1, max_tokens // length)
        if first - start >= fit:  # one of this length would be too many
            ends.append(start := first)
        ends.extend(range(start + fit, end + 1, fit))
        start += (end - start) // fit * fit
    return ends if start == end else [*ends, end]


def empty_batch() -> Batch:
    """A batch without a real target token: its loss is zero, and so is its gradient."""
    return Batch(torch.tensor([[EOS_ID]]), torch.tensor([[BOS_ID]]), torch.tensor([[PAD_ID]]), 0)


def pad(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Sequences of ids as one tensor (B, longest), padded at the end."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return _padded(lengths, np.fromiter(itertools.chain.from_iterable(sequences), np.int64, lengths.sum()))


def collate(source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> Batch:
    """A batch of sentence pairs, every sequence ending in EOS."""
    return _batch_of(pad(source_ids), pad(target_ids))


def _batch_of(source: Tensor, target_out: Tensor) -> Batch:
    target_in = torch.cat([torch.full((len(target_out), 1), BOS_ID), target_out[:, :-1]], dim=1)
    return Batch(source, target_in, target_out, int((target_out != PAD_ID).sum()))


def _padded(lengths: np.ndarray, ids: np.ndarray) -> Tensor:
    """The ids of sequences of these lengths (B,), one after the other: (B, longest)."""
    padded = np.full((len(lengths), lengths.max()), PAD_ID, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = ids
    return torch.from_numpy(padded)


class BatchSource:
    """The batches of a tokenised dataset: any epoch, from any place in it.

    `dataset` has the columns source, target, source_ids, target_ids, source_length and target_length.
    """

    def __init__(
        self,
        dataset: Any,
        tokenizers: tuple[Tokenizer, Tokenizer],
        *,
        max_tokens: int,
        seed: int,
        longest: int | None = None,
        sampling: float = 0.0,
        any_length: bool = False,
    ) -> None:
        """`sampling`: the alpha of `Tokenizer.sample`; 0 keeps each sentence's best segmentation. `any_length`: of
        `plan_batches`.

        `longest`: the most tokens that a sampled segmentation may have; None: as many as fit into its batch.
        """
        self.dataset = dataset
        self.tokenizers = tokenizers
        self.max_tokens = max_tokens
        self.seed = seed
        self.any_length = any_length
        self.longest = max_tokens if longest is None else longest
        self.sampling = sampling
        self._ids = dataset.select_columns(["source_ids", "target_ids"]).with_format("arrow")
        lengths = dataset.select_columns(["source_length", "target_length"]).with_format("arrow")[:]
        growth = self._growth() if sampling else 1.0
        self._source_lengths = self._grown(lengths["source_length"].to_numpy(), growth)
        self._target_lengths = self._grown(lengths["target_length"].to_numpy(), growth)
        self._plan: tuple[int, list[np.ndarray]] | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The sentence indices of each batch of an epoch."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, plan_batches(
                self._source_lengths, self._target_lengths, max_tokens=self.max_tokens, seed=self.seed, epoch=epoch,
                any_length=self.any_length)
        return self._plan[1]

    def batch(self, epoch: int, number: int) -> Batch:
        """One batch of an epoch."""
        batch = self._batch(self.plan(epoch)[number], seed=derive_seed(self.seed, SEGMENTATION, epoch, number))
        return replace(batch, seed=derive_seed(self.seed, DROPOUT, epoch, number))

    def of_sizes(self, epoch: int, *quantiles: float) -> list[Batch]:
        """Batches by their ranks in cells among those of an epoch: 0.5 is the median, 1 the largest."""
        plan = self.plan(epoch)
        sizes = np.array([len(rows) for rows in plan])
        starts, rows = np.cumsum(sizes) - sizes, np.concatenate(plan)
        source, target = (
            np.maximum.reduceat(lengths[rows], starts) for lengths in (self._source_lengths, self._target_lengths))
        by_size = np.argsort(sizes * (source + target), kind="stable")
        return [self._batch(plan[by_size[round(quantile * (len(plan) - 1))]], seed=0) for quantile in quantiles]

    def _batch(self, rows: np.ndarray, *, seed: int) -> Batch:
        if not self.sampling:  # never as Python's lists, which take longer to make than a GPU takes for an update
            ids = self._ids[rows.tolist()]
            return _batch_of(*(
                _padded(pc.list_value_length(side).to_numpy(), pc.list_flatten(side).to_numpy())
                for side in (ids["source_ids"], ids["target_ids"])))
        pairs = self.dataset[rows.tolist()]
        return collate(
            self._sample(pairs["source"], pairs["source_ids"], self.tokenizers[0], seed),
            self._sample(pairs["target"], pairs["target_ids"], self.tokenizers[1], seed))

    def _sample(
        self, texts: list[str], best: list[list[int]], tokenizer: Tokenizer, seed: int
    ) -> list[list[int]]:
        """A random segmentation of each text; the best one where the random one would be too long."""
        room = min(self.max_tokens // len(texts), self.longest)
        sampled = tokenizer.sample(texts, alpha=self.sampling, seed=seed)
        return [ids if len(ids) <= room else usual for ids, usual in zip(sampled, best, strict=True)]

    def _grown(self, lengths: np.ndarray, growth: float) -> np.ndarray:
        """The lengths to plan with: growth stops at the budget, but a sentence past it stays so and is refused."""
        if growth == 1:
            return lengths
        return np.maximum(lengths, np.minimum(np.ceil(lengths * growth).astype(int), self.max_tokens))

    def _growth(self) -> float:
        """How much longer sampled segmentations are, at the 90th percentile, so that most fit the batches planned."""
        pairs = self.dataset[:GROWTH_SAMPLE]
        ratios = [
            len(sampled) / len(best)
            for side, tokenizer in zip(("source", "target"), self.tokenizers, strict=True)
            for sampled, best in zip(
                tokenizer.sample(pairs[side], alpha=self.sampling, seed=self.seed), pairs[f"{side}_ids"], strict=True)
        ]
        return max(1.0, float(np.quantile(ratios, 0.9)))
