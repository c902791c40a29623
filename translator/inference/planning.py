"""Plan the translation of a text: the units to search, or why it is refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from translator.config.languages import SEPARATOR, split_tag, tag_of
from translator.config.options import MOST_DEMANDED, MOST_PHRASES, PlanningOptions
from translator.inference.terminology import Terminology
from translator.inference.translation import Refusal, Request, decoded
from translator.text.markup import Markup, strip_tags
from translator.text.placeholders import MOST_PLACEHOLDERS, find_spans
from translator.text.sentence_splitter import split_clauses, split_sentences
from translator.text.surface_form import SurfaceForm, SurfaceForms
from translator.text.tokenizer import EOS_ID, UNK_ID, Tokenizer
from translator.text.writing_systems import normal, whole_words

# Share of training sources with two or more sentences from which a model counts as trained on such texts.
OFTEN = 0.5
# Languages with a smaller share of capitals within sentences write little but names with one.
FEW_CAPITALS = 0.1
# A sentence is split if it is longer than this many times the 99th percentile of training sources.
FAR_TOO_LONG = 2


@dataclasses.dataclass(frozen=True)
class TrainingStatistics:
    """Statistics of the training pairs; None if unknown."""

    longest_source: float | None = None  # tokens
    long_source: float | None = None  # 99th percentile, in tokens
    several_sentences: float | None = None  # share of sources with two or more
    length_ratio: float | None = None  # target tokens per source token
    capitals: float | None = None  # share of words within sources that begin with a capital

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> TrainingStatistics:
        """Read them from a data report, which an older release or another program may have written."""
        try:
            train = dict(report["splits"]["train"])
        except (KeyError, TypeError, ValueError):
            return cls()
        known = {name: value for name, value in train.items() if isinstance(value, int | float) and abs(value) < 2**53}
        source, target = known.get("source_tokens"), known.get("target_tokens")
        return cls(
            known.get("source_longest"), known.get("source_long"), known.get("source_several"),
            target / source if source and target else None, known.get("source_capitals"))


@dataclasses.dataclass(frozen=True)
class Unit:
    """A sentence, or a text, that is searched as one."""

    ids: list[int]  # of the form's text, with its tag, if it has one
    text: str
    prefix: list[int]
    required: tuple[str, ...]
    form: SurfaceForm = SurfaceForm("", "")  # noqa: RUF009 frozen
    markup: Markup | None = None  # the tags that were in the text

    @property
    def is_nothing(self) -> bool:
        """Whether it holds nothing to translate."""
        return self.ids == [EOS_ID]


NOTHING = Unit([EOS_ID], "", [], ())


class Planner:
    """Split a text into units to search, with the prefix and phrases that each translation must hold."""

    def __init__(
        self, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, statistics: TrainingStatistics, positions: int | None
    ) -> None:
        """positions: number of learned positions, None without them."""
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.statistics, self.positions = statistics, positions
        self._terminologies: dict[str, Terminology] = {}
        only_names = statistics.capitals is not None and statistics.capitals < FEW_CAPITALS
        self._forms = SurfaceForms(source_tokenizer, target_tokenizer, names_have_capitals=only_names)

    def plan(self, request: Request, options: PlanningOptions) -> list[Unit] | str:
        """Return the units to search, one that `is_nothing` for a text without words, or why the text is refused."""
        try:
            return list(self._units(request, options))
        except Refusal as reason:
            return f"{reason}; not translated"

    def split_tag(self, text: str, options: PlanningOptions) -> tuple[str, str]:
        """Return the tag of the language wanted, by the text itself or else by the options; and the text without it.

        Context counts as a tag. It is left out where both are too long together.
        """
        tag, rest = split_tag(text)
        if SEPARATOR in tag and self.source_tokenizer.separator is not None and options.language is None:
            return tag if len(self.source_tokenizer.encode([text])[0]) <= self.longest_together(options) else "", rest
        if tag.rstrip() in self.source_tokenizer.tags:
            return tag, rest
        return "" if options.language is None else tag_of(options.language), text

    def tag_problem(self, tag: str) -> str:
        """Return why a text with this tag cannot be translated, if so."""
        tags = self.source_tokenizer.tags
        if not tags:
            chosen = tag and SEPARATOR not in tag
            return "search.language is for models of several languages, and this one has no choice" if chosen else ""
        return "" if tag.rstrip() in tags else (
            f"to which language? Begin the text with one of {', '.join(tags)}, or set search.language")

    def longest_source(self, options: PlanningOptions) -> int:
        """Return the most tokens of a source: those allowed, within learned positions."""
        return options.max_source_tokens if self.positions is None else min(options.max_source_tokens, self.positions)

    def longest_together(self, options: PlanningOptions) -> float:
        """Return the most tokens of a text that is not split, and of a text with its context."""
        usual = self.statistics.long_source or self.statistics.longest_source or math.inf
        return min(FAR_TOO_LONG * usual, self.longest_source(options))

    def _units(self, request: Request, options: PlanningOptions) -> Iterator[Unit]:
        whole = request.context + decoded(request.text)
        if self.source_tokenizer.separator is not None and whole.rstrip().endswith(SEPARATOR):
            raise Refusal(f"no text follows {SEPARATOR}")
        tag, text = self.split_tag(whole, options)
        markup = self._markup(request, text, options)
        text = markup.text if markup else text
        if not text.strip():
            yield dataclasses.replace(NOTHING, markup=markup)
            return
        required = tuple(phrase for phrase in (*options.required, *request.required) if phrase.strip())
        prefix = options.prefix if request.prefix is None else request.prefix
        if problem := self.tag_problem(tag):
            raise Refusal(problem)
        self._require_possible(required, prefix, options)
        sentences = [text] if required else self._sentences(text, tag, options)  # which sentence needs a phrase is unknown
        prefixes, last = split_sentences(prefix), len(sentences) - 1
        prefixes = [*prefixes[:last], "".join(prefixes[last:])]  # one a sentence
        markups = markup.split(sentences) if markup else []
        for sentence, beginning, tags in itertools.zip_longest(sentences, prefixes, markups):
            form = self._form(sentence, options, plain=bool(beginning or required))
            [ids] = self.source_tokenizer.encode([tag + form.text])
            [prefix_ids] = self.target_tokenizer.encode([beginning or ""])
            phrases = (*required, *self._terms(form.text, request.terminology, options))
            yield dataclasses.replace(self._unit(ids, form, prefix_ids[:-1], phrases, options), markup=tags)

    def _form(self, sentence: str, options: PlanningOptions, *, plain: bool) -> SurfaceForm:
        """Return what to translate in place of a sentence: itself if `plain`, or if a banned phrase would be given back."""
        form = SurfaceForm(sentence, sentence)
        if options.robust and not plain:
            form = self._forms.of(sentence)
            kept = normal(" ".join((form.front, form.back, *form.values)))
            if options.banned and whole_words(*options.banned).search(kept):
                form = SurfaceForm(sentence, sentence)
        return form

    def without_placeholders(self, unit: Unit) -> Unit:
        """Return the unit with what its placeholders stand for."""
        tag, form = unit.ids[: self.source_tokenizer.count_tags(unit.ids)], unit.form.without_placeholders()
        ids = tag + self.source_tokenizer.encode([form.text])[0][len(self.source_tokenizer.tag_ids) :]
        return dataclasses.replace(unit, ids=ids, form=form)

    def _markup(self, request: Request, text: str, options: PlanningOptions) -> Markup | None:
        """Return a text without its tags, and these; None if it has none."""
        if request.markup is None:
            return strip_tags(text) if options.robust else None
        markup = request.markup.without_start(len(request.markup.text) - len(text))
        return markup if options.robust and self.source_tokenizer.placeholders else markup.without_objects()

    def _sentences(self, text: str, tag: str, options: PlanningOptions) -> list[str]:
        """Return the parts of a text to translate one by one."""
        seen = self.statistics
        longest, several = seen.longest_source or math.inf, seen.several_sentences or 0.0

        def length(part: str) -> int:
            return len(self.source_tokenizer.encode([tag + part])[0])

        def fits(part: str) -> bool:
            return length(part) <= limit and not (options.robust and len(find_spans(part)) > MOST_PLACEHOLDERS)

        choice = options.split_sentences
        if choice == "never" or (choice == "auto" and several >= OFTEN and length(text) <= longest):
            return [text]
        limit = self.longest_together(options)
        return [
            part for sentence in split_sentences(text)
            for part in split_clauses(sentence, fits)]

    def _terms(self, text: str, own: Terminology | None, options: PlanningOptions) -> list[str]:
        """Return the translations that the terms in a sentence must have. The terms of a request come before the file."""
        terms = own.required(text) if own else []
        if file := options.terminology:  # read once
            if file not in self._terminologies:
                self._terminologies[file] = Terminology.load(Path(file))
            terms += self._terminologies[file].required(text, without=own.pairs if own else ())
        return list(dict.fromkeys(terms))

    def _unit(
        self, ids: list[int], form: SurfaceForm, prefix: list[int], required: tuple[str, ...], options: PlanningOptions
    ) -> Unit:
        if len(ids) == 1 + self.source_tokenizer.count_tags(ids):  # only invisible characters
            return Unit([EOS_ID], form.source, [], (), dataclasses.replace(form, text=""))
        self._require_possible(required, "", options)
        limit = self.longest_source(options)
        if len(ids) > limit:
            option = "model.max_positions" if limit == self.positions else "search.max_source_tokens"
            raise Refusal(f"{len(ids):,} tokens, more than {option}={limit}")
        unit = Unit(ids, form.source, prefix, required, form)
        demanded = len(prefix) + sum(map(len, self.target_tokenizer.encode_phrases(unit.required)))
        if self.positions is not None and demanded >= self.positions:
            raise Refusal(f"its prefix and phrases have more than model.max_positions={self.positions} tokens")
        return unit

    def _require_possible(self, required: Sequence[str], prefix: str, options: PlanningOptions) -> None:
        """Refuse what no translation can hold."""
        if sum(map(len, required)) > MOST_DEMANDED or len(required) > MOST_PHRASES:
            raise Refusal(f"its required phrases are more than {MOST_PHRASES}, or have more than {MOST_DEMANDED:,} characters")
        for text in (*required, prefix):
            if len(text) > MOST_DEMANDED:
                raise Refusal(f"must hold {text[:20]!r}..., a text of more than {MOST_DEMANDED:,} characters")
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise Refusal(f"{text!r} has an unpaired surrogate")
            if UNK_ID in self.target_tokenizer.encode([text])[0]:
                raise Refusal(f"{text!r} holds characters that the vocabulary lacks")
            if text and options.banned and whole_words(*options.banned).search(normal(text)):
                raise Refusal(f"must hold {text!r}, which is banned")
