"""The translations that a report shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from translator.evaluation.differences import mark_differences
from translator.evaluation.evaluate import Evaluation
from translator.inference.line_formats import Line, notices
from translator.inference.translation import Request
from translator.metrics.sentences import sentence_scores

Example = dict[str, Any]


def all_examples(evaluations: Sequence[Evaluation]) -> list[Example]:
    """Return every sentence with its outputs, in the order of the test set."""
    texts = zip(evaluations[0].sources, evaluations[0].references, strict=True) if evaluations else ()
    examples = []
    for (source, reference), *translations in zip(texts, *(one.translations for one in evaluations), strict=True):
        scores = sentence_scores("chrf", [translation.text for translation in translations], reference)
        examples.append({
            "source": source, "reference": reference, "translations": translations, "scores": scores, "chrf": scores[0],
            "gain": scores[0] - scores[-1], "exact": translations[0].text == reference})
    return examples


def chosen_examples(examples: Sequence[Example], count: int, seed: int) -> dict[str, list[Example]]:
    """Return typical (drawn at random), best and worst translations by chrF, and the largest gains and losses."""
    typical = random.Random(seed).sample(examples, min(count, len(examples)))  # the same of every run on these sentences
    worst = sorted(examples, key=lambda example: (example["chrf"], len(example["source"])))
    lost = sorted(examples, key=lambda example: example["gain"])
    chosen = {
        "typical": typical, "best": worst[::-1][:count], "worst": worst[:count],
        "better": [example for example in lost[::-1][:count] if example["gain"] > 0],
        "worse": [example for example in lost[:count] if example["gain"] < 0]}
    return {kind: [example | _shown(example) for example in of_kind] for kind, of_kind in chosen.items()}


def _shown(example: Example) -> Example:
    """Return the texts in parts, marked where they differ from the reference, and the reference from the first output."""
    reference, translations = example["reference"], example["translations"]
    return {
        "reference": mark_differences(reference, translations[0].text),
        "outputs": [
            {"parts": mark_differences(translation.text, reference), "chrf": score,
             "notices": notices(Line(Request(example["source"])), translation)}
            for translation, score in zip(translations, example["scores"], strict=True)]}
