"""Models that are tables, small enough to try every output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from tests.support.configurations import search_config
from translator import search as searching
from translator.config.options import SearchConfig
from translator.model.active_hypotheses import ActiveHypotheses
from translator.search import Demands, Hypothesis
from translator.search.engine import Model
from translator.text.tokenizer import BOS_ID, EOS_ID

VOCAB = 7  # four special ids and three words
WORDS = range(EOS_ID + 1, VOCAB)
LIMIT = 4  # tokens before EOS: 121 outputs in all, few enough to try each
EXHAUSTIVE = 1000  # a beam wider than there are hypotheses

Prefix = tuple[int, ...]


class ToyState:
    def __init__(self, sources: list[int]) -> None:
        self.sources = sources
        self.prefixes: list[list[Prefix]] = [[()] for _ in sources]

    def reorder(self, parents: Tensor) -> None:
        self.prefixes = [[row[k] for k in kept] for row, kept in zip(self.prefixes, parents.tolist(), strict=True)]

    def select(self, sentences: Tensor) -> None:
        self.sources = [self.sources[i] for i in sentences.tolist()]
        self.prefixes = [self.prefixes[i] for i in sentences.tolist()]


class Toy:
    """A language model that is a table: logits as a function of the source's first token and of all tokens so far."""

    def __init__(self, logits: Callable[[int, Prefix], Tensor]) -> None:
        self.table = cache(logits)
        self.steps = 0
        self.most_sentences: list[int] = []

    def encode(self, source: Tensor) -> Tensor:
        return source

    def start(self, memory: Tensor, mask: Tensor, *, follow_coverage: bool = False) -> ToyState:
        return ToyState(memory[:, 0].tolist())

    def decode_step(self, tokens: Tensor, state: ToyState, rows: ActiveHypotheses) -> Tensor:
        self.steps += 1
        self.most_sentences.append(len(tokens))
        state.prefixes = [
            [prefix + (token,) for prefix, token in zip(prefixes, new, strict=True)]
            for prefixes, new in zip(state.prefixes, tokens.tolist(), strict=True)]
        return rows.pack(torch.stack([
            torch.stack([self.table(source, prefix) for prefix in prefixes])
            for source, prefixes in zip(state.sources, state.prefixes, strict=True)]))

    def log_probabilities(self, decoded: Tensor, some: slice) -> Tensor:
        return decoded[some].log_softmax(dim=-1)


def random_toy(seed: int, *, vocab: int = VOCAB) -> Toy:
    def logits(source: int, prefix: Prefix) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, source, prefix)) % 2**31)  # tuples of ints hash alike everywhere
        return 2 * torch.randn(vocab, generator=generator)

    return Toy(logits)


def constant_toy(**logits: float) -> Toy:
    """The same distribution at each step: logits by id, as in `t3=5`; every other one is 0."""
    row = torch.zeros(VOCAB)
    for name, value in logits.items():
        row[int(name[1:])] = value
    return Toy(lambda source, prefix: row)


def search(model: Model, source: Tensor, config: SearchConfig, demands: Demands | None = None) -> list[list[Hypothesis]]:
    """Search by the user's options."""
    return searching.search(model, source, config, demands)


def toy_config(**changes: object) -> SearchConfig:
    return search_config(**({"min_length": 0, "max_length_ratio": 0, "max_length_extra": LIMIT} | changes))


def sources(*firsts: int) -> Tensor:
    return torch.tensor([[first, EOS_ID] for first in firsts])


def every_output(
    toy: Toy, source: int, min_length: int = 0, *, limit: int = LIMIT, penalty: float = 1.0
) -> Iterator[tuple[Prefix, float]]:
    """Each possible output with its log-probability, EOS among its tokens; that of repeated tokens times `penalty`."""
    def extend(prefix: Prefix, total: float) -> Iterator[tuple[Prefix, float]]:
        log_probabilities = toy.table(source, prefix).double().log_softmax(-1).tolist()
        for token in set(prefix):
            log_probabilities[token] *= penalty
        length = len(prefix) - 1
        if length >= min_length or length == limit:
            yield prefix[1:], total + log_probabilities[EOS_ID]
        if length < limit:
            for token in WORDS:
                yield from extend((*prefix, token), total + log_probabilities[token])

    yield from extend((BOS_ID,), 0.0)


def brute_force(
    toy: Toy, source: int, alpha: float, min_length: int = 0, form: str = "gnmt"
) -> list[tuple[float, Prefix]]:
    """Every output by its score, computed with the formula of the paper, best first."""
    def penalty(length: int) -> float:
        return ((5 + length) / 6) ** alpha if form == "gnmt" else length**alpha

    scored = ((p / penalty(len(ids) + 1), ids) for ids, p in every_output(toy, source, min_length))
    return sorted(scored, reverse=True)


def best_of(toy: Toy, source: int, holds: Callable[[Prefix], bool], **options: object) -> list[tuple[float, Prefix]]:
    """The outputs for which `holds`, by log-probability, best first."""
    return sorted(((p, ids) for ids, p in every_output(toy, source, **options) if holds(ids)), reverse=True)  # type: ignore[arg-type]


def ids_of(found: list[list[Hypothesis]]) -> list[list[Prefix]]:
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found]
