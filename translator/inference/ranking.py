"""From the outputs of a search to a ranked translation."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

import torch

from translator.inference.options import RankingOptions
from translator.inference.translation import ONLY_EMPTY, Translation, join
from translator.metrics.sentences import SentenceMetric, pairwise_scores
from translator.search.hypothesis import Hypothesis, Ids
from translator.text.tokenizer import EOS_ID
from translator.text.writing_systems import normal, whole_words


def rank(source: Ids, texts: Sequence[str], hypotheses: Sequence[Hypothesis], options: RankingOptions) -> Translation:
    """Rank hypotheses and their texts, both best first by score."""
    if not hypotheses:
        return Translation(refused="no translation keeps to all that was asked for; not translated")
    pairs = [(text, hypothesis) for text, hypothesis in zip(texts, hypotheses, strict=True) if text]
    if not pairs:
        return Translation(refused=ONLY_EMPTY)
    best_of_text: dict[str, Hypothesis] = {}  # two outputs may spell one text by different pieces
    for text, hypothesis in pairs:
        best_of_text.setdefault(text, hypothesis)
    if options.mbr:
        pairs = [(text, best_of_text[text]) for text in by_expected_score([text for text, _ in pairs], options.mbr)]
    elif options.distinct:
        pairs = list(best_of_text.items())
    ranked_texts, ranked = zip(*pairs, strict=True)
    return Translation(ranked_texts, ranked, pairs=((source, [*ranked[0].ids, EOS_ID]),))


def by_expected_score(candidates: Sequence[str], metric: SentenceMetric) -> list[str]:
    """Return the different candidates by minimum Bayes risk: by their mean score with all as references, best first.

    All candidates count as equally likely, so one that was drawn twice counts twice (Kumar and Byrne 2004,
    https://aclanthology.org/N04-1022; Eikema and Aziz 2020, https://arxiv.org/abs/2005.10283).
    """
    counts = Counter(candidates)
    times = torch.tensor(list(counts.values()), dtype=torch.float64)
    expected = dict(zip(counts, (pairwise_scores(metric, list(counts)) @ times).tolist(), strict=True))
    return sorted(counts, key=lambda candidate: -expected[candidate])


def without_phrases(banned: re.Pattern[str], translation: Translation) -> Translation:
    """Drop the outputs that hold a banned phrase."""
    allowed = [number for number, text in enumerate(translation.texts) if not banned.search(normal(text))]
    return dataclasses.replace(
        translation, texts=tuple(translation.texts[i] for i in allowed),
        hypotheses=tuple(translation.hypotheses[i] for i in allowed if translation.hypotheses))


def join_allowed(sentences: Sequence[Translation], banned: Sequence[str]) -> Translation:
    """Join the translations of a text's sentences; refused if that creates a banned phrase between two of them."""
    translation = join(sentences)
    if not banned or translation.sentences == 1:
        return translation
    allowed = without_phrases(whole_words(*banned), translation)
    if allowed.texts[:1] != translation.texts[:1]:
        return Translation(refused="its sentences hold a banned phrase where two of them meet; not translated")
    return allowed


def as_line(text: str) -> str:
    """Return `text` without line breaks, which byte pieces can spell, so that a file holds one text a line."""
    return text.replace("\r", " ").replace("\n", " ").strip()
