"""Translations token by token: how sure the model was, and what it attended to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from translator.config.options import SearchConfig
from translator.inference.planning import Unit
from translator.inference.translation import Translation
from translator.inference.translator import Translator
from translator.search import Hypothesis
from translator.search.forced import Rating
from translator.text.tokenizer import EOS_ID

# Decimals of the numbers sent.
DECIMALS = 3


def explain(
    translator: Translator, units: Sequence[Unit], translations: Sequence[Translation], options: SearchConfig
) -> list[dict[str, Any]]:
    """Return each sentence's source tokens, and its translations, the best first, with score and tokens."""
    pairs = [
        (unit.ids, [*hypothesis.ids, EOS_ID])
        for unit, translation in zip(units, translations, strict=True) for hypothesis in translation.hypotheses]
    ratings = iter(translator.rate(pairs, options))
    return [
        {"source": translator.source_tokenizer.spans(unit.text),
         "translations": list(_explained(translator, unit, translation, ratings))}
        for unit, translation in zip(units, translations, strict=True)]


def _explained(
    translator: Translator, unit: Unit, translation: Translation, ratings: Iterator[Rating]
) -> Iterator[dict[str, Any]]:
    hypothesis: Hypothesis
    for text, hypothesis, rating in zip(translation.texts, translation.hypotheses, ratings, strict=False):
        surfaces = translator.target_tokenizer.surfaces(hypothesis.ids)
        tags = translator.source_tokenizer.count_tags(unit.ids)
        attention = rating.attention[: len(surfaces), tags:-1].tolist()  # without tags, and EOS on either side
        tokens = [
            {"text": surface, "log_probability": round(log_probability, DECIMALS),
             "attention": [round(weight, DECIMALS) for weight in row]}
            for surface, log_probability, row in zip(surfaces, rating.log_probabilities, attention, strict=False)]
        yield {"text": text, "score": round(hypothesis.score, DECIMALS), "hit_limit": hypothesis.hit_limit, "tokens": tokens}
