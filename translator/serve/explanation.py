"""A sentence and its translations token by token: how sure the model was, and what it attended to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from translator.config.options import SearchConfig
from translator.inference.planning import Unit
from translator.inference.translation import Translation
from translator.inference.translator import Translator
from translator.search import Hypothesis
from translator.text.tokenizer import EOS_ID

# Decimals of what is sent to be drawn.
DECIMALS = 3


def explain(
    translator: Translator, units: Sequence[Unit], translations: Sequence[Translation], options: SearchConfig
) -> list[dict[str, Any]]:
    """Of each sentence what its tokens stand for, and its translations with score and tokens, the best first."""
    pairs = [
        (unit.ids, [*hypothesis.ids, EOS_ID])
        for unit, translation in zip(units, translations, strict=True) for hypothesis in translation.hypotheses]
    ratings = iter(translator.rate(pairs, options))

    def one(unit: Unit, text: str, hypothesis: Hypothesis) -> dict[str, Any]:
        rating = next(ratings)
        surfaces = translator.target_tokenizer.surfaces(hypothesis.ids)
        tags = translator.source_tokenizer.count_tags(unit.ids)
        attention = rating.attention[: len(surfaces), tags:-1].tolist()  # without tags, and EOS on either side
        tokens = [
            {"text": surface, "log_probability": round(certainty, DECIMALS), "attention": [round(a, DECIMALS) for a in row]}
            for surface, certainty, row in zip(surfaces, rating.log_probabilities, attention, strict=False)]
        return {"text": text, "score": round(hypothesis.score, DECIMALS), "hit_limit": hypothesis.hit_limit, "tokens": tokens}

    return [
        {"source": translator.source_tokenizer.spans(unit.text),
         "translations": [one(unit, *pair) for pair in zip(translation.texts, translation.hypotheses, strict=False)]}
        for unit, translation in zip(units, translations, strict=True)]
