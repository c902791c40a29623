"""Translate a test set, score it, write the report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from translator.config.languages import split_tag
from translator.config.options import SearchConfig
from translator.inference.translation import ONLY_EMPTY, Translation
from translator.inference.translator import Translator, as_line
from translator.metrics.scores import METRICS, LengthScore, Score, metrics_for, score, scores_by_length, sentence_scores
from translator.metrics.significance import Comparison, paired_bootstrap
from translator.runtime.atomic_files import write_text
from translator.runtime.errors import UserError


@dataclass(frozen=True)
class Evaluation:
    """A scored test set. Every text is one line, as in the files that `save` writes."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    translations: list[Translation]
    scores: dict[str, Score]
    by_length: list[LengthScore]
    search: SearchConfig
    language: str  # of references and hypotheses
    seconds: float  # that the translations took

    @property
    def hit_limit(self) -> float:
        """Share of outputs that ended only because they had reached the longest length allowed."""
        return sum(translation.hit_limit for translation in self.translations) / len(self.translations)

    @property
    def refused(self) -> int:
        """How many sources were not translated; their outputs are empty, and scored so."""
        return sum(bool(translation.refused) for translation in self.translations)

    def worst(self, count: int) -> list[tuple[float, str, str, str]]:
        """The (chrF, source, hypothesis, reference) of the sentences with the lowest sentence chrF."""
        rows = zip(self.sources, self.hypotheses, self.references, strict=True)
        return sorted((sentence_scores("chrf", [h], r)[0], s, h, r) for s, h, r in rows)[:count]

    def save(self, folder: Path) -> None:
        """Write source.txt, reference.txt, hypothesis.txt and scores.json.

        `sacrebleu reference.txt -i hypothesis.txt` prints the same scores; of a language without spaces between words it takes
        what the signatures name, such as `--tokenize zh`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._texts().items():
            write_text(folder / name, text)
        write_text(folder / "scores.json", json.dumps(self._as_json(), ensure_ascii=False, indent=1) + "\n")

    def beside_others(self, folder: Path) -> Path:
        """`folder`, or where that holds other sentences, as of another file of the same name, the first of folder-2, -3..."""
        texts = self._texts()

        def vacant(candidate: Path) -> bool:
            held = ((candidate / name, texts[name].encode()) for name in ("source.txt", "reference.txt"))
            return all(not file.is_file() or file.read_bytes() == ours for file, ours in held)

        numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
        return next(candidate for candidate in itertools.chain([folder], numbered) if vacant(candidate))

    def _texts(self) -> dict[str, str]:
        texts = {"source": self.sources, "reference": self.references, "hypothesis": self.hypotheses}
        return {f"{name}.txt": "".join(line + "\n" for line in lines) for name, lines in texts.items()}

    def _as_json(self) -> dict[str, Any]:
        return {
            "sentences": len(self.sources), "refused": self.refused, "hit_limit": self.hit_limit,
            "scores": {name: dataclasses.asdict(value) for name, value in self.scores.items()},
            "by_length": [dataclasses.asdict(part) for part in self.by_length],
            "search": dataclasses.asdict(self.search)}


def evaluate(
    translator: Translator, sources: Sequence[str], references: Sequence[str], search: SearchConfig, language: str
) -> Evaluation:
    """Translate `sources` to `language` and score the outputs against `references`, one of each a line."""
    if not sources:
        raise UserError("nothing to evaluate: the split or file has no sentences")
    sources, references = [as_line(text) for text in sources], [as_line(text) for text in references]
    stream = translator.stream(sources, search)
    started = time.perf_counter()
    translations = list(tqdm(stream, total=len(sources), unit=" sentences", leave=False, disable=None))
    seconds = time.perf_counter() - started
    if all(translation.refused not in ("", ONLY_EMPTY) for translation in translations):
        raise UserError(f"no source could be translated; the first: {translations[0].refused}")
    hypotheses = [translation.text for translation in translations]
    texts = [split_tag(source)[1] if translator.source_tokenizer.tags else source for source in sources]
    return Evaluation(
        sources, references, hypotheses, translations,
        score(metrics_for(references, language), texts, hypotheses, references),
        scores_by_length(texts, hypotheses, references, language), search, language, seconds)


def describe(evaluation: Evaluation, *, worst: int = 0) -> str:
    """An evaluation in words and aligned figures."""
    lines = [f"{len(evaluation.sources):,} sentences"]
    lines += [f"{value.name:6} {value.value:6.2f}  {value.signature}" for value in evaluation.scores.values()]
    lines += [
        f"{metric.name} is left out: it takes long on texts of this length"
        for name, metric in METRICS.items() if name not in evaluation.scores]
    lines += [f"{100 * evaluation.hit_limit:.1f} % of the outputs hit the length limit"]
    if evaluation.refused:
        reason = next(translation.refused for translation in evaluation.translations if translation.refused)
        lines += [f"{evaluation.refused:,} sources were refused; the first: {reason}"]
    lines += ["BLEU by source words:"]
    lines += [f"  {part.lengths:>8}  {part.bleu:6.2f}  ({part.count:,} sentences)" for part in evaluation.by_length]
    if worst:
        lines += [f"The {min(worst, len(evaluation.sources)):,} sentences of lowest chrF:"]
        for value, source, hypothesis, reference in evaluation.worst(worst):
            lines += [f"  {value:5.1f}  source     {source}", f"         output     {hypothesis}",
                      f"         reference  {reference}"]
    return "\n".join(lines)


def compare(systems: Sequence[tuple[str, Evaluation]]) -> list[Comparison]:
    """Paired bootstrap of several systems' outputs for the same sentences against the first system's."""
    first = systems[0][1]
    metrics = metrics_for(first.references, first.language).values()
    return paired_bootstrap(
        metrics, [(name, evaluation.hypotheses) for name, evaluation in systems], first.sources, first.references)


def describe_comparison(comparisons: Sequence[Comparison]) -> str:
    """A comparison as a table; p is the probability of a difference this large by chance alone."""
    width = max(len(row.system) for row in comparisons)
    lines = ["paired bootstrap against the first:"]
    for row in comparisons:
        p = "baseline" if row.p_value is None else f"p = {row.p_value:.4f}"
        lines += [f"  {row.metric:5}  {row.system:{width}}  {row.value:6.2f}  ({row.mean:.2f} ± {row.interval:.2f})  {p}"]
    return "\n".join(lines)
