"""From the outputs of a search to a ranked translation, with warnings of what it may lack."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence

import torch

from translator.inference.planning import Unit
from translator.inference.translation import ONLY_EMPTY, Translation
from translator.metrics.sentences import SentenceMetric, pairwise_scores
from translator.search.hypothesis import Hypothesis, Ids
from translator.text.sentence_splitter import rejoined, space_behind, split_sentences
from translator.text.surface_form import SurfaceForm
from translator.text.tokenizer import EOS_ID
from translator.text.writing_systems import normal, whole_words

# Warn if an output has less than this share of the expected tokens; sources with fewer tokens vary too much.
SHORT, LEAST_TOKENS = 0.4, 10
# Digits with what groups them: 25.50, 1,000, 7:30.
NUMBER = re.compile(r"\d+(?:[.,:'\u00a0\u202f]\d+)*")


def rank(
    source: Ids, texts: Sequence[str], hypotheses: Sequence[Hypothesis], *, mbr: SentenceMetric | None, distinct: bool
) -> Translation:
    """Rank hypotheses and their texts, both best first by score: by expected score with `mbr`, else as they come.

    distinct: keep the best of outputs that spell the same text.
    """
    if not hypotheses:
        return Translation(refused="no translation keeps to all that was asked for; not translated")
    pairs = [(text, hypothesis) for text, hypothesis in zip(texts, hypotheses, strict=True) if text]
    if not pairs:
        return Translation(refused=ONLY_EMPTY)
    best_of_text: dict[str, Hypothesis] = {}  # two outputs may spell one text by different pieces
    for text, hypothesis in pairs:
        best_of_text.setdefault(text, hypothesis)
    if mbr:
        pairs = [(text, best_of_text[text]) for text in by_expected_score([text for text, _ in pairs], mbr)]
    elif distinct:
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


def restored(translation: Translation, form: SurfaceForm, *, distinct: bool) -> Translation:
    """Return a translation of the form's text as one of its sentence; distinct: keep the best of texts that become one."""
    if translation.refused:
        return translation
    if form.is_plain:
        return dataclasses.replace(translation, forms=(form,))
    pairs = [(as_line(form.restore(text)), h) for text, h in zip(translation.texts, translation.hypotheses, strict=True)]
    if distinct:
        pairs = [pair for number, pair in enumerate(pairs) if pair[0] not in dict(pairs[:number])]
    texts, hypotheses = zip(*pairs, strict=True)
    return dataclasses.replace(translation, texts=texts, hypotheses=hypotheses, forms=(form,))


def without_phrases(banned: re.Pattern[str], translation: Translation) -> Translation:
    """Drop the outputs that hold a banned phrase."""
    allowed = [number for number, text in enumerate(translation.texts) if not banned.search(normal(text))]
    return dataclasses.replace(
        translation, texts=tuple(translation.texts[i] for i in allowed),
        hypotheses=tuple(translation.hypotheses[i] for i in allowed if translation.hypotheses))


def join_allowed(sentences: Sequence[Translation], banned: Sequence[str]) -> Translation:
    """Join the translations of a text's sentences, with its spaces: the best of each, then the second best, and so on.

    Refused if that creates a banned phrase between two of them.
    """
    if len(sentences) == 1:
        return sentences[0]
    if refused := next((sentence.refused for sentence in sentences if sentence.refused), ""):
        return Translation(refused=refused)
    texts, hypotheses, spaces = [], [], [sentence.space for sentence in sentences]
    for place in range(max(len(sentence.texts) for sentence in sentences)):
        texts.append(rejoined([sentence.texts[min(place, len(sentence.texts) - 1)] for sentence in sentences], spaces))
        hypotheses.append(_sum([
            sentence.hypotheses[min(place, len(sentence.hypotheses) - 1)] for sentence in sentences if sentence.hypotheses]))
    pairs, forms, warnings = (
        tuple(itertools.chain(*each)) for each in zip(*((s.pairs, s.forms, s.warnings) for s in sentences), strict=True))
    joined = Translation(tuple(texts), tuple(hypotheses), "", len(sentences), pairs, forms, tuple(dict.fromkeys(warnings)))
    allowed = without_phrases(whole_words(*banned), joined) if banned else joined
    if allowed.texts[:1] != joined.texts[:1]:
        return Translation(refused="its sentences hold a banned phrase where two of them meet; not translated")
    return allowed


def _sum(hypotheses: list[Hypothesis]) -> Hypothesis:
    return Hypothesis(
        tuple(i for hypothesis in hypotheses for i in hypothesis.ids), sum(h.log_probability for h in hypotheses),
        sum(h.score for h in hypotheses), any(h.hit_limit for h in hypotheses))


def as_line(text: str) -> str:
    """Return `text` without line breaks, which byte pieces can spell, so that a file holds one text a line."""
    return text.replace("\r", " ").replace("\n", " ").strip()


def untranslated(unit: Unit) -> Translation:
    """Return a sentence that holds nothing to translate as its own translation."""
    return Translation((as_line(unit.form.restore("")),), forms=(unit.form,), space=space_behind(unit.text))


def warnings_of(translation: Translation, unit: Unit, ratio: float) -> tuple[str, ...]:
    """Return signs that a translation lacks part of its source; ratio: target tokens per source token in training."""
    if not translation.hypotheses:
        return ()
    sentences = len(split_sentences(unit.text)) if unit.required else 1  # any of them may need the required phrase
    joined = f"the translation may be incomplete: required phrases keep {sentences} sentences together" if sentences > 1 else ""
    short = short_output(len(unit.ids), 1 + len(translation.hypotheses[0].ids), ratio)
    lost = ", ".join(dict.fromkeys(value for value in unit.form.unkept if value not in translation.text))
    unkept = f"the translation lacks {lost}" if lost else ""
    return tuple(filter(None, (short, lost_numbers(unit.text, translation.text), unkept, joined)))


def short_output(source: int, output: int, ratio: float) -> str:
    """Return a warning if an output is far too short, in tokens."""
    if source < LEAST_TOKENS or output >= SHORT * ratio * source:
        return ""
    return f"the translation may be incomplete: {output} tokens for {source} of the source"


def lost_numbers(source: str, output: str) -> str:
    """Return a warning that names the numbers of two or more digits that an output lacks, however it groups digits."""
    numbers = [(number, re.sub(r"\D", "", number)) for number in NUMBER.findall(source)]
    missing = Counter(digits for _, digits in numbers) - Counter(re.sub(r"\D", "", number) for number in NUMBER.findall(output))
    lost = dict.fromkeys(number for number, digits in numbers if digits in missing and len(digits) > 1)
    return f"numbers that the translation lacks: {', '.join(lost)}" if lost else ""
