"""Translate texts: plan, search in batches, rank, keep the order."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from translator.config.options import EngineName, SearchConfig
from translator.data.batching import pad
from translator.data.lexicon import Lexicon
from translator.inference.confidence import foreign_source, low_certainty
from translator.inference.details import Details, collect_details
from translator.inference.engine import Engine
from translator.inference.given import as_translated
from translator.inference.markup import restore_tags
from translator.inference.placeholder_search import PlaceholderSearch
from translator.inference.planning import Planner, Unit
from translator.inference.ranking import as_line, join_allowed, rank, restored, untranslated, warnings_of, without_phrases
from translator.inference.trained_model import TrainedModel
from translator.inference.translation import Given, Request, Translation
from translator.runtime.console import log
from translator.runtime.device import OutOfMemory, advise_when_out_of_memory
from translator.runtime.errors import UserError
from translator.runtime.typed import typed
from translator.search import Demands, Hypothesis, search
from translator.search.engine import as_one
from translator.search.hypothesis import Ids
from translator.search.scoring import Rating, predictions, rate
from translator.search.shortlist import Shortlist, search_among
from translator.text.html import parse_html
from translator.text.placeholders import placeholder
from translator.text.sentence_splitter import space_behind
from translator.text.tokenizer import EOS_ID, PAD_ID, UNK_ID, Tokenizer
from translator.text.writing_systems import normal, whole_words

# Texts translated together: enough to fill a CPU's batches with sentences of similar length, and one batch of a GPU.
CHUNK = 512
# search.batch_tokens=auto: each batch costs a GPU the same wait, so it gets large ones.
TOKENS_ON_CPU, TOKENS_ON_GPU = 32_768, 131_072
# Searches for an output without banned phrases, each without the spellings that the earlier ones found.
BANNED_TRIES = 20

Item = TypeVar("Item")
Result = TypeVar("Result")


def _require_texts(texts: Sequence[str | bytes | Request]) -> None:
    if isinstance(texts, str | bytes):  # a sequence too: each character would be translated
        raise TypeError(f"expected a list of texts, got one text. Pass [{texts[:40]!r}]")
    for text in texts:
        if not isinstance(text, str | bytes | Request):
            raise TypeError(f"expected a list of texts, got one that holds {text!r}")


class Translator:
    """Trained models and their tokenizers: `Translator("runs/x")(["A sentence."])` returns the translations."""

    def __init__(
        self, *runs: str | Path | TrainedModel, device: str = "auto", precision: str = "fp32",
        engine: EngineName = "torch",
    ) -> None:
        """Load run folders, or take models in memory; several of the same vocabulary translate together (an ensemble).

        engine: ctranslate2 is faster on a CPU; auto takes it where it finds the same. UserError if a run cannot be loaded.
        """
        if not runs:
            raise ValueError("no run folder given")
        trained = [run if isinstance(run, TrainedModel) else TrainedModel.load(run, device, precision) for run in runs]
        first = trained[0]
        self.models = [each.model for each in trained]
        self.source_tokenizer, self.target_tokenizer = first.source_tokenizer, first.target_tokenizer
        self.search = first.search
        self._statistics, self.folder = first.statistics, first.folder
        self._languages, self._low_certainty = first.languages, first.low_certainty
        self._memory_limit = sys.maxsize  # tokens of a batch; lowered when memory does not suffice
        for run, other in zip(runs, trained, strict=True):
            if not (Tokenizer.same_as(other.source_tokenizer, self.source_tokenizer)
                    and Tokenizer.same_as(other.target_tokenizer, self.target_tokenizer)):
                raise UserError(f"{run}: its vocabulary is not that of {runs[0]}: they cannot translate together")
        # Learned positions limit sources and, with BOS, outputs.
        positions = min((m.config.max_positions for m in self.models if m.config.positions == "learned"), default=None)
        self.planner = Planner(self.source_tokenizer, self.target_tokenizer, first.statistics, positions)
        self._engine = Engine(
            engine, self._search, first.reloaded, first.folder if len(trained) == 1 else None, self.device, first.precision,
            (first.source_tokenizer, first.target_tokenizer))
        self._find = PlaceholderSearch(self._engine, self.planner)

    @property
    def device(self) -> torch.device:
        """The models' device."""
        return next(self.models[0].parameters()).device

    @cached_property
    def shortlist(self) -> Shortlist:
        """The first run's; UserError if it has none."""
        if self.folder is None:
            raise UserError(f"search.shortlist: is learned once a training has ended, by `{typed('shortlist')}`")
        return self.folder.load_shortlist(len(self.source_tokenizer), len(self.target_tokenizer)).to(self.device)

    @cached_property
    def lexicon(self) -> Lexicon | None:
        """The first run's, on the CPU; None if it has none, as one of an earlier release."""
        sizes = len(self.source_tokenizer), len(self.target_tokenizer)
        return None if self.folder is None else self.folder.load_lexicon(*sizes)

    def __call__(self, texts: Sequence[str], search: SearchConfig | None = None) -> list[str]:
        """Return the translation of each text, in order; an empty one for an empty text, and for one that is refused.

        TypeError for one text in place of a list.
        """
        return [translation.text for translation in self.translate(texts, search)]

    def translate(self, texts: Sequence[str | bytes | Request], search: SearchConfig | None = None) -> list[Translation]:
        """Return translations with n-best lists, scores and the reason why a text was refused. TypeError as above."""
        _require_texts(texts)
        config = search or self.search
        plans = [self.plan(text if isinstance(text, Request) else Request(text), config) for text in texts]
        units = [unit for plan in plans if not isinstance(plan, str) for unit in plan]
        found = iter(self.translate_units(units, config))
        return [
            Translation(refused=plan) if isinstance(plan, str) else join_allowed([next(found) for _ in plan], config.banned)
            for plan in plans]

    def translate_html(self, html: str, search: SearchConfig | None = None) -> str:
        """Translate the text of an HTML document or fragment; tags and all that is not text stay.

        UserError for a text that cannot be translated.
        """
        document = parse_html(html)
        translations = self.translate([Request(markup.text, markup=markup) for markup in document.texts], search)
        for markup, translation in zip(document.texts, translations, strict=True):
            if translation.refused:
                raise UserError(f"{markup.plain[:40]!r}: {translation.refused}")
        return document.join([translation.text for translation in translations])

    def stream(self, texts: Iterable[str | bytes | Request], search: SearchConfig | None = None) -> Iterator[Translation]:
        """Translate any number of texts, `CHUNK` at a time, in constant memory."""
        remaining = iter(texts)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            yield from self.translate(chunk, search)

    def plan(self, request: Request, search: SearchConfig) -> list[Unit] | str:
        """Return the units to search, or why the text is refused."""
        if search.shortlist:
            _ = self.shortlist  # a missing one is reported before anything is searched
        demanding = request.terminology or any(map(str.strip, request.required))
        if demanding and (search.sampling or search.groups > 1 or search.keep_places):
            return ("phrases can be required of plain beam search only, without search.sampling, search.groups and "
                    "search.keep_places; not translated")
        self._engine.require(search)
        return self.planner.plan(request, search)

    def translate_units(self, units: Sequence[Unit], search: SearchConfig) -> list[Translation]:
        """Return the translation of each unit, in order."""
        found = iter(self._in_batches(
            [unit for unit in units if not unit.is_nothing], lambda unit: len(unit.ids) * search.beam_size,
            partial(self._translate_batch, options=search), search))
        translations = [untranslated(unit) if unit.is_nothing else next(found) for unit in units]
        if not any(unit.markup for unit in units):
            return translations
        rate = partial(self.rate, search=search)
        return restore_tags(units, translations, self.source_tokenizer, self.target_tokenizer, rate)

    def details_of(self, translations: Sequence[Translation], search: SearchConfig | None = None) -> list[Details]:
        """Rate translations of this translator token by token and align their words; an empty one has no tokens."""
        config = search or self.search
        ratings = iter(self.rate([pair for translation in translations for pair in translation.pairs], config))
        return [
            collect_details(
                [(pair, next(ratings)) for pair in of.pairs], of.forms, self.source_tokenizer, self.target_tokenizer, config)
            for of in translations]

    def details(
        self, sources: Sequence[str], translations: Sequence[str | Given], search: SearchConfig | None = None
    ) -> list[Details | None]:
        """Rate given translations, as `details_of` does.

        None for a pair with a side longer than `search.max_source_tokens` or the learned positions, or with an unknown
        target language.
        """
        given = [
            as_translated(source, text if isinstance(text, Given) else Given(text), self.planner, search or self.search)
            for source, text in zip(sources, translations, strict=True)]
        return [details if of.forms else None for of, details in zip(given, self.details_of(given, search), strict=True)]

    def rate(self, pairs: Sequence[tuple[Ids, Ids]], search: SearchConfig) -> list[Rating]:
        """Return the models' probabilities and attention for each pair of a source and an output, both with EOS."""
        def work(batch: list[tuple[Ids, Ids]]) -> list[Rating]:
            sources, outputs = map(list, zip(*batch, strict=True))
            return rate(self.models, sources, outputs, self.device, self.lexicon)

        return self._in_batches(pairs, lambda pair: max(map(len, pair)), work, search)

    def predictions(
        self, sources: Sequence[str], references: Sequence[str], search: SearchConfig
    ) -> list[tuple[Ids, Tensor, Tensor]]:
        """Return the ids of references, and for each place the likeliest token and its probability, given the ids before it.

        Pairs that `details` does not rate are left out.
        """
        pairs = [
            pair for source, reference in zip(sources, references, strict=True)
            for pair in as_translated(source, Given(reference), self.planner, search).pairs]

        found = self.likeliest(pairs, 1, search)
        return [(ids, tokens[:, 0], probabilities[:, 0])
                for (_, ids), (tokens, probabilities) in zip(pairs, found, strict=True)]

    def likeliest(self, pairs: Sequence[tuple[Ids, Ids]], count: int, search: SearchConfig) -> list[tuple[Tensor, Tensor]]:
        """Return the `count` likeliest tokens at each place of each pair's output, and their probabilities (T, count)."""
        def work(batch: list[tuple[Ids, Ids]]) -> list[tuple[Tensor, Tensor]]:
            sources, outputs = map(list, zip(*batch, strict=True))
            return predictions(self.models, sources, outputs, self.device, count)

        return self._in_batches(pairs, lambda pair: max(map(len, pair)), work, search)

    def tokens_at_once(self, search: SearchConfig) -> int:
        """Return `search.batch_tokens`, with auto resolved."""
        if search.batch_tokens != "auto":
            return search.batch_tokens
        return TOKENS_ON_GPU if self.device.type == "cuda" else TOKENS_ON_CPU

    def _translate_batch(self, units: list[Unit], options: SearchConfig) -> list[Translation]:
        result = []
        for unit, hypotheses in self._find(units, options):
            translation = self._rank(unit, hypotheses, options)
            if options.banned:
                translation, unit = self._without_banned(unit, translation, options)
            translation = restored(translation, unit.form, distinct=not options.sampling)
            result.append(dataclasses.replace(
                translation, texts=translation.texts[: options.n_best], hypotheses=translation.hypotheses[: options.n_best],
                space=space_behind(unit.text), warnings=self._warnings(translation, unit, options)))
        return result

    def _warnings(self, translation: Translation, unit: Unit, options: SearchConfig) -> tuple[str, ...]:
        unsure = [low_certainty(best, options, self._low_certainty) for best in translation.hypotheses[:1]]
        warnings = foreign_source(unit.text, self._languages), *unsure
        return (*filter(None, warnings), *warnings_of(translation, unit, self._statistics.length_ratio or 0.0))

    def _search(
        self, units: list[Unit], options: SearchConfig, banned: Sequence[tuple[int, ...]] = (), *, placeholders: bool = False
    ) -> list[list[Hypothesis]]:
        """Search for outputs of each unit. placeholders: these are required, besides the unit's phrases."""
        required = [self.target_tokenizer.encode_phrases(unit.required) for unit in units]
        if placeholders:
            required = [
                [*phrases, *([i] for i in self._reserved(self.target_tokenizer, unit))]
                for phrases, unit in zip(required, units, strict=True)]
        longest = None if self.planner.positions is None else self.planner.positions - 1  # BOS takes a position too
        demands = Demands([unit.prefix for unit in units], required, banned, self.target_tokenizer.goes_on, longest)
        source = pad([unit.ids for unit in units]).to(self.device)
        n_best = options.most_outputs if options.mbr else options.n_best
        if n_best > 1:  # some to spare, for outputs that are spelled alike
            n_best = min(options.most_outputs, 2 * n_best)
        wanted = dataclasses.replace(options, n_best=n_best)
        if options.shortlist:
            allowed = self._allowed(units, source, options.shortlist)
            found = search_among(self.models, allowed, source, wanted, demands)
        else:
            found = search(as_one(self.models), source, wanted, demands)
        if not all(found):  # a search for one token finds an output, unless probabilities are NaN
            one_token = dataclasses.replace(options.plain(1), min_length=1, max_length=1)
            if not all(search(as_one(self.models), source, one_token)):
                raise UserError("the model gives no probabilities (NaN): its weights are damaged, or its training went astray")
        return found

    def _reserved(self, tokenizer: Tokenizer, unit: Unit) -> list[int]:
        """Return the ids of the placeholders of a unit's text."""
        return tokenizer.ids_of([placeholder(number) for number in range(1, len(unit.form.values) + 1)])

    def _allowed(self, units: list[Unit], source: torch.Tensor, candidates: int) -> torch.Tensor:
        """Return the shortlist of each unit, with its placeholders, which its training pairs need not have had."""
        reserved = [self._reserved(self.source_tokenizer, unit) for unit in units]
        known = source.masked_fill(torch.isin(source, torch.tensor(max(reserved, key=len), device=source.device)), PAD_ID)
        allowed = self.shortlist.allowed(known, candidates)
        for row, unit in zip(allowed, units, strict=True):
            row[self._reserved(self.target_tokenizer, unit)] = True
        return allowed

    def _rank(self, unit: Unit, hypotheses: list[Hypothesis], options: SearchConfig) -> Translation:
        texts = self.target_tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
        if options.copy_unknown:
            texts = [
                self._copy_unknown(unit, hypothesis) if UNK_ID in hypothesis.ids else text
                for text, hypothesis in zip(texts, hypotheses, strict=True)]
        return rank(unit.ids, list(map(as_line, texts)), hypotheses, mbr=options.mbr, distinct=not options.sampling)

    def _copy_unknown(self, unit: Unit, hypothesis: Hypothesis) -> str:
        """Return the text with source characters for unknown pieces: of the source's unknown ones, the most attended to."""
        [rating] = self.rate([(unit.ids, [*hypothesis.ids, EOS_ID])], self.search)
        tags = self.source_tokenizer.count_tags(unit.ids)
        ids, aligned, attention = unit.ids[tags:-1], rating.alignment[:, tags:-1], rating.attention[:, tags:-1]
        spelled = self.source_tokenizer.spell(unit.form.text)
        unknown = [i for i, piece in enumerate(ids) if piece == UNK_ID] or list(range(len(ids)))
        pieces = self.target_tokenizer.pieces(hypothesis.ids)
        for place, piece in enumerate(hypothesis.ids):
            if piece == UNK_ID:
                weights = aligned[place, unknown]
                weights = weights if weights.any() else attention[place, unknown]
                pieces[place] = spelled[unknown[int(weights.argmax())]]
        return self.target_tokenizer.decode_pieces(pieces)

    def _without_banned(self, unit: Unit, translation: Translation, options: SearchConfig) -> tuple[Translation, Unit]:
        """Search again, without the tokens by which the best output spells banned phrases, until it holds none.

        Other outputs that hold one are dropped: n_best does not change the first.
        """
        banned = whole_words(*options.banned)
        spellings: list[tuple[int, ...]] = []
        while translation.hypotheses and banned.search(normal(translation.text)):
            if len(spellings) == BANNED_TRIES:
                return Translation(refused="no translation without banned phrases was found; not translated"), unit
            spellings.append(self._spelling(translation.hypotheses[0].ids, banned))
            [(unit, hypotheses)] = self._find([unit], options, spellings)
            translation = self._rank(unit, hypotheses, options)
        return without_phrases(banned, translation), unit

    def _spelling(self, ids: tuple[int, ...], phrases: re.Pattern[str]) -> tuple[int, ...]:
        """Return the tokens by which an output spells a phrase; all of them if it was copied from the source."""
        def holds(first: int, last: int) -> bool:
            return phrases.search(normal(self.target_tokenizer.decode([ids[first:last]])[0])) is not None

        last = next((n for n in range(1, len(ids) + 1) if holds(0, n) and holds(0, min(n + 1, len(ids)))), len(ids))
        first = next((n for n in reversed(range(last)) if holds(n, last)), 0)
        return ids[first:last]

    def _in_batches(
        self, items: Sequence[Item], size: Callable[[Item], int], work: Callable[[list[Item]], list[Result]],
        search: SearchConfig,
    ) -> list[Result]:
        """Return the results of `work` on the items, in order, in batches of similar size, the largest first.

        A batch, padded, keeps to `search.batch_tokens`, or to half of what memory did not suffice for.
        """
        for model in self.models:
            if model.training:
                model.eval()
        sizes = list(map(size, items))
        waiting = sorted(range(len(items)), key=lambda i: -sizes[i])
        results: dict[int, Result] = {}
        while waiting:
            largest = sizes[waiting[0]]
            batch = waiting[: max(1, min(self.tokens_at_once(search), self._memory_limit) // largest)]
            try:
                with advise_when_out_of_memory(f"lower search.beam_size={search.beam_size}, or search.max_source_tokens"):
                    done = work([items[i] for i in batch])
            except OutOfMemory:
                if len(batch) == 1:
                    raise
                tried = len(batch) * largest
                self._memory_limit = tried // 2
                log(f"warning: no memory for a batch of {tried} tokens; going on as with search.batch_tokens={tried // 2}")
                continue
            results.update(zip(batch, done, strict=True))
            del waiting[: len(batch)]
        return [results[i] for i in range(len(items))]
