"""The models by language pair: texts in, answers for each sentence out; and the languages of texts."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from translator.config.commands import ServeConfig
from translator.config.languages import tag_of
from translator.config.options import SearchConfig
from translator.inference.planning import Unit
from translator.inference.ranking import join_allowed
from translator.inference.translation import Request, Translation
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.serve.batcher import Batcher
from translator.text.language import name_of, rank_languages
from translator.text.tokenizer import EOS_ID

DECIMALS = 3  # of the numbers sent


class Unanswerable(Exception):
    """A request that cannot be answered; the message says why."""


@dataclass(frozen=True)
class Kind:
    """What sentences must have in common to be translated together."""

    source: str
    target: str
    n_best: int
    explained: bool


@dataclass(frozen=True)
class Answer:
    """The translation of a sentence."""

    translation: Translation
    explanation: dict[str, Any] | None


Answers = list[list[Answer]]  # of a text, by line and sentence


class Service:
    """Translate texts by the run of their language pair, batched with the texts of other requests."""

    def __init__(self, config: ServeConfig, runs: Sequence[str]) -> None:
        """Load the runs. Raises UserError if one cannot be loaded, or two are for the same languages."""
        self.search = config.search
        self.translators: dict[tuple[str, str], Translator] = {}
        for run in runs:
            translator = Translator(run, device=config.device, precision=config.precision)
            for source, target in RunFolder(run).load_config().data.directions:
                planned = translator.plan(_request("a", translator, target), self.search)
                if isinstance(planned, str):  # the search cannot work for any text
                    raise UserError(f"run={run}: {planned}")
                if (source, target) in self.translators:
                    raise UserError(f"run={run}: another run is for {source} to {target} too. Name one of them.")
                self.translators[source, target] = translator
        self.codes = sorted(set(itertools.chain.from_iterable(self.translators)))
        self.detector = Detector(self.codes)
        tokens = next(iter(self.translators.values())).tokens_at_once(self.search)
        self.batcher: Batcher[tuple[Kind, Unit]] = Batcher(
            self._translate_batch, kind=lambda sentence: sentence[0], size=lambda sentence: len(sentence[1].ids),
            batch_tokens=tokens // self.search.beam_size, max_waiting=config.max_waiting)

    async def detect(self, text: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self.detector.detect, text)

    async def translate(
        self, texts: Sequence[str], sources: Sequence[str], target: str, n_best: int = 1, explained: bool = False
    ) -> list[Answers]:
        """Return the answers for each text. `sources`: the language of each text."""
        kinds = [Kind(source, target, n_best, explained) for source in sources]
        plans = await asyncio.to_thread(lambda: list(map(self._plan, kinds, texts)))
        answers = iter(await self.batcher.submit(
            [(kind, unit) for kind, lines in zip(kinds, plans, strict=True) for line in lines for unit in line]))
        return [[[next(answers) for _ in line] for line in lines] for lines in plans]

    def _plan(self, kind: Kind, text: str) -> list[list[Unit]]:
        """Split a text into lines, and these into sentences to search for."""
        for code in (kind.source, kind.target):
            if code not in self.codes:
                raise Unanswerable(f"{code} is not supported")
        translator = self.translators.get((kind.source, kind.target))
        if translator is None:
            raise Unanswerable(f"{name_of(kind.target)} ({kind.target}) is not available as a target language from "
                               f"{name_of(kind.source)} ({kind.source})")
        lines = []
        for number, line in enumerate(text.split("\n"), 1):
            plan = translator.plan(_request(line.removesuffix("\r"), translator, kind.target), self.search)
            if isinstance(plan, str):
                raise Unanswerable(f"line {number}: {plan}")
            lines.append(plan)
        return lines

    def _translate_batch(self, sentences: list[tuple[Kind, Unit]]) -> list[Answer]:
        """Translate sentences of one kind; runs in the batcher's thread."""
        kind, units = sentences[0][0], [unit for _, unit in sentences]
        translator = self.translators[kind.source, kind.target]
        translations = translator.translate_units(units, dataclasses.replace(self.search, n_best=kind.n_best))
        explanations = explain(translator, units, translations, self.search) if kind.explained else itertools.repeat(None)
        return list(map(Answer, translations, explanations))


def _request(line: str, translator: Translator, target: str) -> Request:
    """Return a line, tagged with the target language if the model has several."""
    return Request((tag_of(target) if translator.source_tokenizer.tags else "") + line)


def texts_of(text: str, lines: Answers, n_best: int, search: SearchConfig) -> list[str]:
    """Join the translations of a text's lines, the best first, without repetitions. Line breaks are kept."""
    by_line = []
    for number, (line, answers) in enumerate(zip(text.split("\n"), lines, strict=True), 1):
        translation = join_allowed([answer.translation for answer in answers], search.banned)
        if translation.refused:
            raise Unanswerable(f"line {number}: {translation.refused}")
        end = "\r" if line.endswith("\r") else ""
        by_line.append([text + end for text in translation.texts])
    ranked = ("\n".join(texts[min(rank, len(texts) - 1)] for texts in by_line) for rank in range(n_best))
    return list(dict.fromkeys(ranked))


def warnings_of(lines: Answers) -> list[str]:
    """Return the warnings about a text's translation, each once."""
    return list(dict.fromkeys(warning for line in lines for answer in line for warning in answer.translation.warnings))


def untouched(text: str) -> Answers:
    """Return the lines of a text as their own translations."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return [[Answer(Translation((line,)), untranslated(line, line))] for line in lines]


def explain(
    translator: Translator, units: Sequence[Unit], translations: Sequence[Translation], options: SearchConfig
) -> Iterator[dict[str, Any]]:
    """Yield each sentence's source tokens, and its translations, the best first, with score and tokens."""
    ratings = iter(translator.rate([
        (source, [*hypothesis.ids, EOS_ID])
        for translation in translations for source, _ in translation.pairs for hypothesis in translation.hypotheses], options))
    for unit, translation in zip(units, translations, strict=True):
        if not translation.pairs:
            yield untranslated(unit.text, translation.text) if translation.text else {"source": [unit.text], "translations": []}
            continue
        [(source, _)], [form] = translation.pairs, translation.forms
        tags, explained = translator.source_tokenizer.count_tags(source), []
        for text, hypothesis, rating in zip(translation.texts, translation.hypotheses, ratings, strict=False):
            surfaces = form.restore_parts(translator.target_tokenizer.surfaces(hypothesis.ids))
            attention = rating.alignment[: len(surfaces), tags:-1].tolist()  # without tags, and EOS on either side
            tokens = [
                {"text": surface, "log_probability": round(log_probability, DECIMALS),
                 "attention": [round(weight, DECIMALS) for weight in row]}
                for surface, log_probability, row in zip(surfaces, rating.log_probabilities, attention, strict=False)]
            explained.append({"text": text, "score": round(hypothesis.score, DECIMALS), "hit_limit": hypothesis.hit_limit,
                              "tokens": tokens})
        yield {"source": form.source_parts(translator.source_tokenizer.spans(form.text)), "translations": explained,
               "warnings": translation.warnings}


def untranslated(source: str, text: str) -> dict[str, Any]:
    """Return the explanation of a text that no model translated."""
    return {"source": [source], "translations": [{"text": text, "score": 0.0, "hit_limit": False, "tokens": []}]}


def served_code(code: str, languages: Sequence[str]) -> str:
    """Return the served language that a code such as `EN` or `en-US` asks for (RFC 4647, section 3.4), or else the code."""
    known = {_tag(language): language for language in languages}
    tag = _tag(code)
    while tag and tag not in known:
        tag = tag.rpartition("-")[0]
    return known.get(tag, code)


def _tag(code: str) -> str:
    return code.lower().replace("_", "-")


class Detector:
    """Detect any language that py3langid knows."""

    def __init__(self, languages: Sequence[str]) -> None:
        """`languages`: the codes served, such as `en-US`, to use in place of py3langid's own."""
        self._served = {_tag(language).split("-")[0]: language for language in languages}

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return all languages, the likeliest first, as LibreTranslate does: confidences in percent, which sum to 100."""
        return [
            {"language": self._served.get(code, code), "confidence": round(100 * probability, 1)}
            for code, probability in rank_languages(text).items()]
