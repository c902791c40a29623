"""Token-budget batches of an epoch as a deterministic plan, and their tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from translator.config.augmentation import AugmentConfig
from translator.data.augmentation import Augmenter
from translator.data.mixing import Mix
from translator.runtime.seeds import derive_seed
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer, Tokenizers

DROPOUT, SEGMENTATION = 1, 2  # purposes of derived seeds
CHANGED_TOGETHER = 10_000  # rows
SIDES = ("source", "target")

Replacements = dict[int, tuple[str, np.ndarray]]  # texts and their ids, by place


@dataclass(frozen=True)
class Batch:
    """Padded sentence pairs: source (B, S); target_in (B, T) starts with BOS; target_out (B, T) ends with EOS."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    num_tokens: int  # target tokens without padding, with EOS
    seed: int = 0  # for the dropout it is trained with

    @property
    def real(self) -> Tensor:
        """Target positions that are not padding: (B, T)."""
        return self.target_out != PAD_ID

    @property
    def padding(self) -> float:
        """Fraction of padding in source and target together."""
        cells = self.source.numel() + self.target_out.numel()
        return 1 - (int((self.source != PAD_ID).sum()) + self.num_tokens) / cells

    def parts(self, count: int) -> list[Batch]:
        """Split into `count` batches of every count-th sentence, padded to the same lengths, each with a seed of its own.

        Sentences are sorted by length, so the parts have about equally many tokens.
        """
        sides = ((x[number::count] for x in (self.source, self.target_in, self.target_out)) for number in range(count))
        return [Batch(source, target_in, target_out, int((target_out != PAD_ID).sum()), derive_seed(self.seed, number))
                for number, (source, target_in, target_out) in enumerate(sides)]

    def to(self, device: torch.device) -> Batch:
        """Copy to a device, without waiting for the copy."""
        source, target_in, target_out = (
            x.to(device, non_blocking=True) for x in (self.source, self.target_in, self.target_out))
        return Batch(source, target_in, target_out, self.num_tokens, self.seed)


def plan_batches(source_lengths: np.ndarray, target_lengths: np.ndarray, *, max_tokens: int, seed: int, epoch: int
                 ) -> list[np.ndarray]:
    """Return the batches of an epoch as arrays of sentence indices. The arguments determine them.

    Sentences of similar length share a batch. Neither side of a batch, padded, has more than `max_tokens`. A sentence that is
    longer has a batch to itself. Each epoch combines other sentences of similar length, and orders the batches differently.
    """
    longest = np.maximum(source_lengths, target_lengths)
    rng = np.random.default_rng((seed, epoch))
    # Sort by the longer side; then by the difference of the sides, alternately up and down, so that neighbours stay alike; then
    # at random. One number holds all three and the index: sorting ten million takes 0.2 s, where argsort takes 2 s.
    difference = source_lengths - target_lengths
    side = np.where(longest % 2, difference, -difference).clip(-2048, 2047) + 2048
    order = longest.astype(np.int64) << 12 | side
    index_bits = len(order).bit_length()
    random_bits = 63 - index_bits - int(order.max(initial=0)).bit_length()
    order <<= random_bits
    order |= rng.integers(2**random_bits, size=len(order))
    order <<= index_bits
    order |= np.arange(len(order))
    order.sort()
    order &= 2**index_bits - 1
    ends = _batch_ends(np.bincount(longest), max_tokens)
    return [order[ends[i - 1] if i else 0 : ends[i]] for i in rng.permutation(len(ends)).tolist()]


def _batch_ends(counts: np.ndarray, max_tokens: int) -> list[int]:
    """Return where batches of sentences sorted by length end, if each takes as many as fit. counts: sentences by length."""
    ends, start, end = list[int](), 0, 0  # start of the open batch
    for length in np.flatnonzero(counts).tolist():
        first, end = end, end + int(counts[length])
        capacity = max(1, max_tokens // length)
        if first - start >= capacity:  # not even one of this length fits
            ends.append(start := first)
        ends.extend(range(start + capacity, end + 1, capacity))
        start += (end - start) // capacity * capacity
    return ends if start == end else [*ends, end]


def empty_batch() -> Batch:
    """Return a batch without target tokens: its loss and gradient are zero."""
    return Batch(torch.tensor([[EOS_ID]]), torch.tensor([[BOS_ID]]), torch.tensor([[PAD_ID]]), 0)


def pad(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Return sequences of ids as one tensor (B, longest), padded at the end."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return _padded(lengths, np.fromiter(itertools.chain.from_iterable(sequences), np.int64, lengths.sum()))


def collate(source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> Batch:
    """Return a batch of sentence pairs whose ids end in EOS."""
    return _batch_of(pad(source_ids), pad(target_ids))


def _batch_of(source: Tensor, target_out: Tensor) -> Batch:
    target_in = torch.cat([torch.full((len(target_out), 1), BOS_ID), target_out[:, :-1]], dim=1)
    return Batch(source, target_in, target_out, int((target_out != PAD_ID).sum()))


def _padded(lengths: np.ndarray, ids: np.ndarray) -> Tensor:
    """Return concatenated sequences of these lengths (B,) as a padded tensor (B, longest)."""
    padded = np.full((len(lengths), lengths.max()), PAD_ID, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = ids
    return torch.from_numpy(padded)


def _encoded(texts: dict[int, str], tokenizer: Tokenizer) -> Replacements:
    ids = map(partial(np.array, dtype=np.int32), tokenizer.encode(list(texts.values())))
    return dict(zip(texts, zip(texts.values(), ids, strict=True), strict=True))


def _replaced(padded: Tensor, lengths: np.ndarray, new: Replacements) -> Tensor:
    """Return padded sequences of these lengths (B,) with some rows replaced, padded to the longest."""
    if not new:
        return padded
    lengths = lengths.copy()
    lengths[list(new)] = [len(ids) for _, ids in new.values()]
    rows = padded.new_full((len(lengths), int(lengths.max())), PAD_ID)
    width = min(rows.shape[1], padded.shape[1])
    rows[:, :width] = padded[:, :width]
    array = rows.numpy()  # the same memory, with cheaper assignments
    for place, (_, ids) in new.items():
        array[place, : len(ids)] = ids
        array[place, len(ids) :] = PAD_ID
    return rows


@dataclass(frozen=True)
class Epoch:
    """The plan of an epoch."""

    number: int
    rows: np.ndarray  # of the dataset; in a mix one may come several times
    batches: list[np.ndarray]  # places in `rows`
    lengths: Sequence[np.ndarray]  # of sources and of targets, as planned with
    changed: Sequence[Replacements]  # sources and targets that augmentation changed, by their places


@dataclass
class BatchSource:
    """Return any batch of any epoch of a tokenised dataset, planned for a budget of `max_tokens` a side."""

    dataset: Any  # with the columns source, target, source_ids, target_ids, source_length and target_length
    tokenizers: Tokenizers
    _: KW_ONLY
    max_tokens: int
    seed: int
    longest: int | None = None  # most tokens of a sampled segmentation; None: as many as fit into the batch
    sampling: float = 0.0  # the alpha of `Tokenizer.sample`; 0 takes each sentence's best segmentation
    augment: AugmentConfig = AugmentConfig()  # noqa: RUF009 frozen; shares of the pairs that are changed before encoding
    mix: Mix | None = None  # None: an epoch has every pair once

    def __post_init__(self) -> None:
        self._ids = self.dataset.select_columns(["source_ids", "target_ids"]).with_format("arrow")
        self._texts = self.dataset.select_columns(list(SIDES))
        lengths = self.dataset.select_columns(["source_length", "target_length"]).with_format("arrow")[:]
        self._plain_lengths = [lengths[f"{side}_length"].to_numpy() for side in SIDES]
        self._sampled_growth = self._growth() if self.sampling else 1.0
        self._augmenter = Augmenter(self.augment, self.seed, self.tokenizers)
        self._epoch: Epoch | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch, as places among its pairs."""
        return self._planned(epoch).batches

    def rows(self, epoch: int, batches: slice) -> np.ndarray:
        """Return the rows of the dataset that are in some batches of an epoch."""
        planned = self._planned(epoch)
        return planned.rows[np.concatenate(planned.batches[batches])]

    def _planned(self, number: int) -> Epoch:
        if self._epoch is None or self._epoch.number != number:
            rows = np.arange(len(self.dataset)) if self.mix is None else self.mix.rows(number, self.seed)
            changed, lengths = self._changed(number, rows), list[np.ndarray]()
            for plain, new in zip(self._plain_lengths, changed, strict=True):
                side = plain[rows]
                side[list(new)] = [len(ids) for _, ids in new.values()]
                lengths.append(self._grown(side, self._sampled_growth))
            batches = plan_batches(*lengths, max_tokens=self.max_tokens, seed=self.seed, epoch=number)
            self._epoch = Epoch(number, rows, batches, lengths, changed)
        return self._epoch

    def _changed(self, epoch: int, rows: np.ndarray) -> tuple[Replacements, Replacements]:
        """Return the sources and targets that augmentation changes among the rows of an epoch, by their places.

        A pair that becomes too long stays plain.
        """
        source, target = Replacements(), Replacements()
        if not self._augmenter.kinds:
            return source, target
        sources = self._texts.with_format("arrow")[:]["source"]
        drawn = self._augmenter.draw(epoch, pc.match_substring_regex(sources, r"\d").to_numpy()[rows])
        places = np.flatnonzero(drawn.any(axis=0))
        for start in range(0, len(places), CHANGED_TOGETHER):
            part = places[start : start + CHANGED_TOGETHER]
            texts = self._texts[rows[part].tolist()]
            plain = dict(zip(part.tolist(), zip(texts["source"], texts["target"], strict=True), strict=True))
            pairs = {place: self._augmenter.change(source_text, target_text, drawn[:, place], epoch, place)
                     for place, (source_text, target_text) in plain.items()}
            for side, new in enumerate((source, target)):
                other = {place: pair[side] for place, pair in pairs.items() if pair[side] != plain[place][side]}
                new |= _encoded(other, self.tokenizers[side])
        longest = min(self.max_tokens, self.longest or self.max_tokens)
        for place in [place for new in (source, target) for place, (_, ids) in new.items() if len(ids) > longest]:
            source.pop(place, None)
            target.pop(place, None)
        return source, target

    def batch(self, epoch: int, number: int) -> Batch:
        batch = self._batch(epoch, self.plan(epoch)[number], seed=derive_seed(self.seed, SEGMENTATION, epoch, number))
        return replace(batch, seed=derive_seed(self.seed, DROPOUT, epoch, number))

    def of_sizes(self, epoch: int, *quantiles: float) -> list[Batch]:
        """Return an epoch's batches at quantiles of size, in cells: 0.5 is the median, 1 the largest."""
        plan = self.plan(epoch)
        sizes = np.array([len(places) for places in plan])
        starts, places = np.cumsum(sizes) - sizes, np.concatenate(plan)
        source, target = (np.maximum.reduceat(lengths[places], starts) for lengths in self._planned(epoch).lengths)
        by_size = np.argsort(sizes * (source + target), kind="stable")
        return [self._batch(epoch, plan[by_size[round(quantile * (len(plan) - 1))]], seed=0) for quantile in quantiles]

    def _batch(self, epoch: int, places: np.ndarray, *, seed: int) -> Batch:
        planned = self._planned(epoch)
        rows = planned.rows[places]
        changed = [{number: new[place] for number, place in enumerate(places.tolist()) if place in new} if new else {}
                   for new in planned.changed]
        if not self.sampling:  # not through Python lists: making them takes longer than an update on a GPU
            ids = self._ids[rows.tolist()]
            columns = [ids[f"{side}_ids"] for side in SIDES]
            lengths = [pc.list_value_length(column).to_numpy() for column in columns]
            flat = [pc.list_flatten(column).to_numpy() for column in columns]
            return _batch_of(*map(_replaced, map(_padded, lengths, flat), lengths, changed))
        pairs = self.dataset[rows.tolist()]
        for side, new in zip(SIDES, changed, strict=True):
            for number, (text, best) in new.items():
                pairs[side][number], pairs[f"{side}_ids"][number] = text, best
        return collate(*(self._sample(pairs[side], pairs[f"{side}_ids"], tokenizer, seed)
                         for side, tokenizer in zip(SIDES, self.tokenizers, strict=True)))

    def _sample(self, texts: list[str], best: list[list[int]], tokenizer: Tokenizer, seed: int) -> list[list[int]]:
        """Return a random segmentation of each text, or the best one if the random one is too long."""
        room = min(self.max_tokens // len(texts), self.longest or self.max_tokens)
        sampled = tokenizer.sample(texts, alpha=self.sampling, seed=seed)
        return [ids if len(ids) <= room else best_ids for ids, best_ids in zip(sampled, best, strict=True)]

    def _grown(self, lengths: np.ndarray, growth: float) -> np.ndarray:
        """Return the lengths to plan with: growth stops at the budget, and what exceeds the budget stays as long."""
        return np.maximum(lengths, np.minimum(np.ceil(lengths * growth).astype(int), self.max_tokens))

    def _growth(self) -> float:
        """Return how much longer sampled segmentations of some texts are, at the 90th percentile: most then fit."""
        pairs = self.dataset[:2000]
        ratios = list[float]()
        for side, tokenizer in zip(SIDES, self.tokenizers, strict=True):
            sampled = tokenizer.sample(pairs[side], alpha=self.sampling, seed=self.seed)
            ratios += [len(ids) / len(best) for ids, best in zip(sampled, pairs[f"{side}_ids"], strict=True)]
        return max(1.0, float(np.quantile(ratios, 0.9)))
