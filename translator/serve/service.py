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
from translator.inference.terminology import Terminology
from translator.inference.translation import Request, Translation
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.search.hypothesis import Ids
from translator.serve.about import About
from translator.serve.batcher import Batcher
from translator.text.html import Document
from translator.text.language import name_of, rank_languages
from translator.text.markup import Markup, strip_tags
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

DECIMALS = 3  # of the numbers sent
BEGINNING = 40  # characters of a line in a warning
LEAST = 1e-30  # probability that is sent: JSON has no -infinity


class Unanswerable(Exception):
    """A request that cannot be answered; the message says why."""


def unsupported(code: str, languages: Sequence[str]) -> Unanswerable:
    """Build the error for a language that is not among those served."""
    return Unanswerable(f"{code} is not supported. Use one of {', '.join(languages)}")


@dataclass(frozen=True)
class Kind:
    """What sentences must have in common to be translated together."""

    source: str
    target: str
    n_best: int
    others: int | None  # of the explanation's tokens; None: no explanation


@dataclass(frozen=True)
class Answer:
    """The translation of a sentence."""

    translation: Translation
    explanation: dict[str, Any] | None


Text = str | Document  # a document is HTML
Answers = list[list[Answer]]  # of a text, by line, or text of a document, and sentence


class Service:
    """Translate texts by the run of their language pair, batched with the texts of other requests."""

    def __init__(self, config: ServeConfig, runs: Sequence[str]) -> None:
        """Load the runs. Raises UserError if one cannot be loaded, or two are for the same languages."""
        self.search = config.search
        self.translators: dict[tuple[str, str], Translator] = {}
        for run in runs:
            translator = Translator(run, device=config.device, precision=config.precision, engine=config.engine)
            for source, target in RunFolder(run).load_config().data.directions:
                planned = translator.plan(_request("a", translator, target), self.search)
                if isinstance(planned, str):  # the search cannot work for any text
                    raise UserError(f"run={run}: {planned}")
                if (source, target) in self.translators:
                    raise UserError(f"run={run}: another run is for {source} to {target} too. Name one of them.")
                self.translators[source, target] = translator
        self.about = {pair: About.of(translator) for pair, translator in self.translators.items()}
        self.codes = sorted(set(itertools.chain.from_iterable(self.translators)))
        self.detector = Detector(self.codes)
        tokens = next(iter(self.translators.values())).tokens_at_once(self.search)
        self.batcher: Batcher[tuple[Kind, Unit]] = Batcher(
            self._translate_batch, kind=lambda sentence: sentence[0], size=lambda sentence: len(sentence[1].ids),
            batch_tokens=tokens // self.search.beam_size, max_waiting=config.max_waiting)

    async def detect(self, text: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self.detector.detect, text)

    async def translate(
        self, texts: Sequence[Text], sources: Sequence[str], target: str, n_best: int = 1, others: int | None = None, *,
        prefixes: Sequence[str] = (), terminology: Terminology | None = None,
    ) -> list[Answers]:
        """Return the answers for each text.

        `sources`, `prefixes`: each text's language, and its translation's beginning. `others`: explain each translation, with
        this number of other tokens at each place.
        """
        kinds = [Kind(source, target, n_best, others) for source in sources]
        plans = await asyncio.to_thread(lambda: [
            self._plan(kind, text, prefix, terminology)
            for kind, text, prefix in zip(kinds, texts, prefixes or [""] * len(texts), strict=True)])
        answers = iter(await self.batcher.submit(
            [(kind, unit) for kind, lines in zip(kinds, plans, strict=True) for line in lines for unit in line]))
        return [[[next(answers) for _ in line] for line in lines] for lines in plans]

    def _plan(self, kind: Kind, text: Text, prefix: str, terminology: Terminology | None) -> list[list[Unit]]:
        """Split a text into lines, or a document into its texts, and these into sentences to search for."""
        for code in (kind.source, kind.target):
            if code not in self.codes:
                raise unsupported(code, self.codes)
        translator = self.translators.get((kind.source, kind.target))
        if translator is None:
            raise Unanswerable(f"{name_of(kind.target)} ({kind.target}) is not available as a target language from "
                               f"{name_of(kind.source)} ({kind.source})")
        lines = []
        prefixes = itertools.chain(prefix.split("\n"), itertools.repeat("")) if prefix else itertools.repeat(None)
        for number, (line, own) in enumerate(zip(_lines(text), prefixes, strict=False), 1):
            request = dataclasses.replace(_request(line, translator, kind.target), prefix=own, terminology=terminology)
            plan = translator.plan(request, self.search)
            if isinstance(plan, str):
                raise Unanswerable(f"{_place(text, number)}: {plan}")
            lines.append(plan)
        return lines

    def _translate_batch(self, sentences: list[tuple[Kind, Unit]]) -> list[Answer]:
        """Translate sentences of one kind; runs in the batcher's thread."""
        kind, units = sentences[0][0], [unit for _, unit in sentences]
        translator = self.translators[kind.source, kind.target]
        translations = translator.translate_units(units, dataclasses.replace(self.search, n_best=kind.n_best))
        explanations = itertools.repeat(None) if kind.others is None else explain(
            translator, units, translations, self.search, kind.others)
        return list(map(Answer, translations, explanations))


def _lines(text: Text) -> list[str | Markup]:
    """Return what is translated one by one."""
    return list(text.texts) if isinstance(text, Document) else [line.removesuffix("\r") for line in text.split("\n")]


def _place(text: Text, number: int) -> str:
    return f"text {number} of the document" if isinstance(text, Document) else f"line {number}"


def _request(line: str | Markup, translator: Translator, target: str) -> Request:
    """Return a line, tagged with the target language if the model has several."""
    tag = tag_of(target) if translator.source_tokenizer.tags else ""
    return Request(tag + line) if isinstance(line, str) else Request(tag + line.text, markup=line)


def texts_of(text: Text, lines: Answers, n_best: int, search: SearchConfig) -> list[str]:
    """Join the translations of a text's lines, the best first, without repetitions. Line breaks are kept."""
    by_line = []
    for number, answers in enumerate(lines, 1):
        translation = join_allowed([answer.translation for answer in answers], search.banned)
        if translation.refused:
            raise Unanswerable(f"{_place(text, number)}: {translation.refused}")
        by_line.append(translation.texts)
    ranked = ([texts[min(rank, len(texts) - 1)] for texts in by_line] for rank in range(n_best))
    return list(dict.fromkeys(_join(text, translations) for translations in ranked))


def warnings_of(lines: Answers) -> list[str]:
    """Return the warnings about a text's translation, each once."""
    return list(dict.fromkeys(warning for line in lines for answer in line for warning in answer.translation.warnings))


def warnings_by_line(text: Text, lines: Answers) -> list[str]:
    """Return the warnings about a text's translation, with the beginning of the line that each is about."""
    beginnings = ((line if isinstance(line, str) else line.plain).strip()[:BEGINNING] for line in _lines(text))
    return [f"{beginning!r}: {warning}" for beginning, line in zip(beginnings, lines, strict=True)
            for warning in warnings_of([line])]


def _join(text: Text, translations: Sequence[str]) -> str:
    if isinstance(text, Document):
        return text.join(translations)
    return "\n".join(map(_spaced, text.split("\n"), translations))


def _spaced(line: str, translation: str) -> str:
    """Return a line's translation with the spaces around the line."""
    if not line.strip():
        return line
    before, _, after = line.partition(line.strip())
    return before + translation.strip() + after


def untouched(text: Text) -> Answers:
    """Return the lines of a text as their own translations."""
    lines = (line if isinstance(line, str) else line.source for line in _lines(text))
    return [[Answer(Translation((line,)), untranslated(line, line))] for line in lines]


def explain(
    translator: Translator, units: Sequence[Unit], translations: Sequence[Translation], options: SearchConfig, others: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield each sentence's source tokens, and its translations, the best first, with score and tokens.

    others: likeliest other tokens at each place, which costs one more pass of the decoder.
    """
    pairs = [
        (source, [*hypothesis.ids, EOS_ID])
        for translation in translations for source, _ in translation.pairs for hypothesis in translation.hypotheses]
    ratings = iter(translator.rate(pairs, options))
    none: Iterator[Any] = itertools.repeat(itertools.repeat({}))
    rivals = _others(translator, pairs, others, options) if others else none
    for unit, translation in zip(units, translations, strict=True):
        if not translation.pairs:
            written = unit.markup.source if unit.markup else unit.text
            yield untranslated(written, *translation.texts) if translation.text else untranslated(written)
            continue
        [(source, _)], [form] = translation.pairs, translation.forms
        tags, explained = translator.source_tokenizer.count_tags(source), []
        for text, hypothesis, rating, beside in zip(translation.texts, translation.hypotheses, ratings, rivals, strict=False):
            surfaces = form.restore_parts(translator.target_tokenizer.surfaces(hypothesis.ids))
            if unit.markup and (tagged := strip_tags(text)) and tagged.text == "".join(surfaces):
                surfaces = tagged.spread(surfaces)
            attention = rating.alignment[: len(surfaces), tags:-1].tolist()  # without tags, and EOS on either side
            tokens = [
                {"text": surface, "log_probability": round(log_probability, DECIMALS),
                 "attention": [round(weight, DECIMALS) for weight in row], **more}
                for surface, log_probability, row, more in zip(
                    surfaces, rating.log_probabilities, attention, beside, strict=False)]
            explained.append({"text": text, "score": round(hypothesis.score, DECIMALS), "hit_limit": hypothesis.hit_limit,
                              "tokens": tokens})
        spans = form.source_parts(translator.source_tokenizer.spans(form.text))
        yield {"source": unit.markup.spread(spans) if unit.markup else spans, "translations": explained,
               "warnings": translation.warnings}


def _others(
    translator: Translator, pairs: Sequence[tuple[Ids, Ids]], count: int, options: SearchConfig
) -> Iterator[list[dict[str, Any]]]:
    """Yield for each output the likeliest other tokens at each of its places that are text, with the space before them."""
    tokenizer = translator.target_tokenizer
    hidden = {PAD_ID, UNK_ID, BOS_ID, EOS_ID, *tokenizer.ids_of(tokenizer.placeholders)}

    def place(chosen: int, tokens: list[int], log_probabilities: list[float]) -> dict[str, Any]:
        found = [
            {"text": text, "log_probability": round(log_probability, DECIMALS)}
            for token, log_probability in zip(tokens, log_probabilities, strict=True)
            if token != chosen and token not in hidden and (text := tokenizer.surface(token)).strip()]
        return {"others": found[:count]}

    likeliest = translator.likeliest(pairs, count + 1 + len(hidden), options)
    for (_, output), (tokens, probabilities) in zip(pairs, likeliest, strict=True):
        yield list(map(place, output, tokens.tolist(), probabilities.clamp(min=LEAST).log().tolist()))


def untranslated(source: str, *texts: str) -> dict[str, Any]:
    """Return the explanation of a text that no model translated, with what stands for its translations."""
    translations = [{"text": text, "score": 0.0, "hit_limit": False, "tokens": []} for text in texts]
    return {"source": [source], "translations": translations, "warnings": []}


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
