"""Rules that lower, in place, the log-probabilities of the next tokens.

Each takes the log-probabilities of N hypotheses, (N, V), and their tokens so far (N, 1 + T), BOS first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from translator.config.options import SearchOptions

Rule = Callable[[Tensor, Tensor], None]


def build_rules(options: SearchOptions, banned: Sequence[Sequence[int]]) -> list[Rule]:
    """Build the rules that the options ask for, and that for banned phrases."""
    rules: list[Rule] = []
    if options.repetition_penalty != 1:
        rules.append(partial(penalise_repetition, options.repetition_penalty))
    if options.no_repeat_ngram:
        rules.append(partial(forbid_repeated_ngrams, options.no_repeat_ngram))
    return rules + [BannedPhrases(banned)] * bool(banned)


def penalise_repetition(penalty: float, log_probabilities: Tensor, tokens: Tensor) -> None:
    """Multiply the log-probability of a token that the output holds already by `penalty`, at least 1.

    After Keskar et al. 2019, https://arxiv.org/abs/1909.05858, section 4.1, who divide its logit. It counts in scores.
    """
    log_probabilities.scatter_(1, tokens, log_probabilities.gather(1, tokens) * penalty)


def forbid_repeated_ngrams(n: int, log_probabilities: Tensor, tokens: Tensor) -> None:
    """Never repeat an n-gram (Paulus et al. 2018, https://arxiv.org/abs/1705.04304, section 2.5)."""
    if tokens.size(1) >= n:
        grams = tokens.unfold(1, n, 1)  # (N, grams, n)
        newest = tokens[:, tokens.size(1) - n + 1 :]  # (N, n - 1): what a next token would complete
        repeated = (grams[..., :-1] == newest[:, None]).all(dim=-1)  # (N, grams)
        ends = grams[..., -1].masked_fill(~repeated, 0)  # 0 is padding, which is never produced
        log_probabilities.scatter_(1, ends, -torch.inf)


class BannedPhrases:
    """Never complete any of these sequences of tokens."""

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        self.phrases = [(torch.tensor(phrase[:-1], dtype=torch.long), phrase[-1]) for phrase in phrases]

    def __call__(self, log_probabilities: Tensor, tokens: Tensor) -> None:
        for beginning, end in self.phrases:
            if tokens.size(1) > len(beginning):
                last = tokens[:, tokens.size(1) - len(beginning) :]
                about_to_end = (last == beginning.to(last.device)).all(dim=-1)
                log_probabilities[:, end].masked_fill_(about_to_end, -torch.inf)
