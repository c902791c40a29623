"""Text in, text out: batches, keeps order, streams."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch

from translator.config.options import SearchConfig
from translator.data.batching import pad
from translator.inference.details import Details, collect_details
from translator.inference.mbr import by_expected_score
from translator.inference.omissions import joined_sentences, lost_numbers, short_output
from translator.inference.planning import NOTHING, Planner, TrainingStatistics, Unit
from translator.inference.translation import ONLY_EMPTY, Given, Request, Translation, join
from translator.model.inference_layers import convert
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, load_into, require_fit
from translator.model.without_hooks import bare
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.runtime.device import Precision, resolve_device
from translator.runtime.errors import UserError
from translator.runtime.memory import OutOfMemory, advise_when_out_of_memory
from translator.search import Demands, Hypothesis, search
from translator.search.engine import Model
from translator.search.ensemble import Ensemble
from translator.search.forced import Rating, rate
from translator.search.hypothesis import Ids
from translator.search.restricted import search_among
from translator.search.shortlist import Shortlist
from translator.text.tokenizer import EOS_ID, UNK_ID, Tokenizer
from translator.text.writing_systems import normal, rejoined, whole_words

# Texts that are translated together: enough to fill a CPU's batches with sentences of like length, and one batch of a GPU.
CHUNK = 512
# What search.batch_tokens=auto comes to: a GPU waits to be asked, whatever the size of a batch, so it gets large ones.
TOKENS_ON_CPU, TOKENS_ON_GPU = 32_768, 131_072
# Searches for an output without banned phrases, each with the spellings ruled out that those before came up with.
BANNED_TRIES = 20

Result = TypeVar("Result")


class Translator:
    """Trained models and their tokenizers: `Translator("runs/x")(["A sentence."])` gives their translations."""

    _folder: RunFolder | None = None  # of the first run

    def __init__(self, *runs: str | Path, device: str = "auto", precision: str = "fp32") -> None:
        """Load a run folder, or several of the same vocabulary that translate together; UserError where that cannot be."""
        where = resolve_device(device)
        models: list[Transformer] = []
        for run in runs:
            folder = RunFolder(run)
            config = folder.load_config()
            tokenizers = folder.load_tokenizers()
            if not models:
                first, trained_on = tokenizers, TrainingStatistics.of(folder.load_report())
            elif not all(map(Tokenizer.same_as, tokenizers, first)):
                raise UserError(f"{run}: its vocabulary is not that of {runs[0]}: they cannot translate together")
            weights = folder.load_weights()
            with torch.device("meta"), SkipInit():  # where a model takes no memory, whatever sizes config.yaml says
                require_fit(Transformer(config.model, *map(len, tokenizers)), weights, folder.model_file)
            with advise_when_out_of_memory(
                    f"{run} does not fit beside what {where.type} holds already; free some, or use device=cpu"):
                with SkipInit():
                    model = Transformer(config.model, *map(len, tokenizers))
                load_into(model, weights, folder.model_file)
                models.append(bare(convert(model.to(where).for_decoding(), Precision.resolve(precision, where))))
        if not models:
            raise ValueError("no run folder given")
        self._folder = RunFolder(runs[0])
        self._set_up(models, *first, self._folder.load_config().search, trained_on)

    @classmethod
    def of(
        cls, model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, *, search: SearchConfig,
        trained_on: TrainingStatistics = TrainingStatistics(),  # noqa: B008 frozen
    ) -> Translator:
        """Make a translator of a model in memory: it takes the weights, and the device, as they are at each call."""
        translator = cls.__new__(cls)
        translator._set_up([model], source_tokenizer, target_tokenizer, search, trained_on)
        return translator

    def _set_up(
        self, models: list[Transformer], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, search: SearchConfig,
        trained_on: TrainingStatistics,
    ) -> None:
        self.models = models
        self.wrap: Callable[[Model], Model] = lambda model: model  # put around the model of every search
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.search = search
        self._suffices = sys.maxsize  # tokens of a batch; fewer from when memory has not sufficed on
        # Learned positions end somewhere, for sources and, with BOS, for outputs.
        positions = min((m.config.max_positions for m in models if m.config.positions == "learned"), default=None)
        self.planner = Planner(source_tokenizer, target_tokenizer, trained_on=trained_on, positions=positions)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(self.models[0].parameters()).device

    @cached_property
    def shortlist(self) -> Shortlist:
        """Of the first run; UserError where it has none."""
        if self._folder is None:
            raise UserError("search.shortlist: is learned once a training has ended, by `make shortlist`")
        return self._folder.load_shortlist(len(self.source_tokenizer), len(self.target_tokenizer)).to(self.device)

    def __call__(self, texts: Sequence[str], search: SearchConfig | None = None) -> list[str]:
        """The translation of each text, in order. An empty text has an empty one, and so has one that is too long."""
        return [translation.text for translation in self.translate(texts, search)]

    def translate(
        self, texts: Sequence[str | bytes | Request], search: SearchConfig | None = None
    ) -> list[Translation]:
        """Like calling, with n-best lists, scores and the reason why a text was refused."""
        options = search or self.search
        plans = [self.plan(text if isinstance(text, Request) else Request(text), options) for text in texts]
        units = [unit for plan in plans if not isinstance(plan, str) for unit in plan]
        found = iter(self.translate_units(units, options))
        return [
            Translation(refused=plan) if isinstance(plan, str) else join_allowed([next(found) for _ in plan], options)
            for plan in plans]

    def stream(
        self, texts: Iterable[str | bytes | Request], search: SearchConfig | None = None
    ) -> Iterator[Translation]:
        """`translate` for any number of texts, `CHUNK` at a time, so that memory stays flat."""
        remaining = iter(texts)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            yield from self.translate(chunk, search)

    def details_of(self, translations: Sequence[Translation], search: SearchConfig | None = None) -> list[Details]:
        """Rate translations of this translator's, token by token, and align their words; an empty one has no tokens."""
        return self._details([translation.pairs for translation in translations], search or self.search)

    def details(
        self, sources: Sequence[str], translations: Sequence[str | Given], search: SearchConfig | None = None
    ) -> list[Details | None]:
        """Rate translations that are given, as `details_of` does.

        None for a pair of which a side is longer than `search.max_source_tokens`, or than the model's learned positions, and
        where it is not clear to which language.
        """
        options = self.planner.within_positions(search or self.search)
        pairs = [self._pairs(*pair, options) for pair in zip(sources, translations, strict=True)]
        told = self._details(pairs, options)
        return [details if of_text else None for of_text, details in zip(pairs, told, strict=True)]

    def _pairs(self, source: str, translation: str | Given, options: SearchConfig) -> list[tuple[Ids, Ids]]:
        """The ids of a source and its translation, sentence by sentence if it was found so; none where it cannot be rated."""
        tag, text = self.planner.tag(source, options)
        if self.planner.language_trouble(tag):
            return []
        given = translation if isinstance(translation, Given) else Given(translation)
        inputs, outputs = self.source_tokenizer.encode([tag + text]), self._found(given)
        if len(outputs) > 1:
            plan = self.plan(Request(source), options)
            inputs = [] if isinstance(plan, str) else [unit.ids for unit in plan if unit != NOTHING]
        if len(inputs) != len(outputs):
            inputs, outputs = self.source_tokenizer.encode([tag + text]), self.target_tokenizer.encode([given.text])
        fits = max(map(len, (*inputs, *outputs))) <= options.max_source_tokens
        return list(zip(inputs, outputs, strict=True)) if fits else []

    def _found(self, given: Given) -> list[list[int]]:
        """The ids of the sentences of a translation, EOS last, by the pieces given with it; none unless they spell its text."""
        ids = self.target_tokenizer.ids_of(given.pieces)
        ends = [place for place, i in enumerate(ids, start=1) if i == EOS_ID]
        sentences = [ids[first:end] for first, end in itertools.pairwise([0, *ends])]
        return sentences if rejoined(list(map(as_line, self.target_tokenizer.decode(sentences)))) == given.text else []

    def _details(self, pairs: Sequence[Sequence[tuple[Ids, Ids]]], options: SearchConfig) -> list[Details]:
        ratings = iter(self.rate([pair for of_text in pairs for pair in of_text], options))
        return [
            collect_details([(pair, next(ratings)) for pair in of_text], self.source_tokenizer, self.target_tokenizer, options)
            for of_text in pairs]

    def plan(self, request: Request, options: SearchConfig) -> list[Unit] | str:
        """The sentences to search for, or the reason to refuse the text."""
        if options.shortlist:
            _ = self.shortlist  # so that it is missed before anything is sought
        return self.planner.plan(request, options)

    def translate_units(self, units: Sequence[Unit], options: SearchConfig) -> list[Translation]:
        """The translation of each sentence, in order."""
        lengths = {i: len(unit.ids) * options.beam_size for i, unit in enumerate(units) if unit != NOTHING}
        result = [Translation()] * len(units)

        def of_batch(batch: list[int]) -> list[Translation]:
            return self._translate_batch([units[i] for i in batch], options)

        for i, translation in self._in_batches(lengths, of_batch, options):
            result[i] = translation
        return result

    def _translate_batch(self, units: list[Unit], options: SearchConfig) -> list[Translation]:
        found = self._search(units, options)
        translations = [
            self._rank(unit, hypotheses, options) for unit, hypotheses in zip(units, found, strict=True)]
        if options.banned:
            translations = [
                self._without_banned(unit, translation, options) for unit, translation in zip(units, translations, strict=True)]
        return [
            dataclasses.replace(
                translation, texts=translation.texts[: options.n_best], hypotheses=translation.hypotheses[: options.n_best],
                warnings=self._warnings(unit, translation))
            for unit, translation in zip(units, translations, strict=True)]

    def _warnings(self, unit: Unit, translation: Translation) -> tuple[str, ...]:
        if not translation.hypotheses:
            return ()
        ratio = self.planner.trained_on.length_ratio or 0.0
        signs = (
            short_output(len(unit.ids), 1 + len(translation.hypotheses[0].ids), ratio),
            lost_numbers(unit.text, translation.text), joined_sentences(unit.text, unit.required))
        return tuple(filter(None, signs))

    def _without_banned(self, unit: Unit, translation: Translation, options: SearchConfig) -> Translation:
        """Search again, without the tokens by which the best output spells banned phrases, until it holds none.

        Of the others, those that do are left out: how many are asked for changes nothing about the first.
        """
        banned = whole_words(*options.banned)
        spellings: list[tuple[int, ...]] = []
        while translation.hypotheses and banned.search(normal(translation.text)):
            if len(spellings) == BANNED_TRIES:
                return Translation(refused="no translation without banned phrases was found; not translated")
            spellings.append(self._spelling(translation.hypotheses[0].ids, banned))
            [hypotheses] = self._search([unit], options, spellings)
            translation = self._rank(unit, hypotheses, options)
        return _leaving_out(banned, translation)

    def _spelling(self, ids: tuple[int, ...], phrases: re.Pattern[str]) -> tuple[int, ...]:
        """The tokens by which an output spells a phrase; all of them where it came in by copying."""
        def holds(first: int, last: int) -> bool:
            return phrases.search(normal(self.target_tokenizer.decode([ids[first:last]])[0])) is not None

        last = next((n for n in range(1, len(ids) + 1) if holds(0, n) and holds(0, min(n + 1, len(ids)))), len(ids))
        first = next((n for n in reversed(range(last)) if holds(n, last)), 0)
        return ids[first:last]

    def _search(
        self, units: list[Unit], options: SearchConfig, banned: Sequence[tuple[int, ...]] = ()
    ) -> list[list[Hypothesis]]:
        for model in self.models:
            if model.training:
                model.eval()
        required = [self.target_tokenizer.encode_phrases(unit.required) for unit in units]
        longest = None if self.planner.positions is None else self.planner.positions - 1  # BOS takes a position too
        demands = Demands([unit.prefix for unit in units], required, banned, self.target_tokenizer.goes_on, longest)
        if options.mbr:
            options = dataclasses.replace(options, n_best=options.most_outputs)
        elif options.n_best > 1:  # some to spare, for outputs that are spelled alike
            options = dataclasses.replace(options, n_best=min(options.most_outputs, 2 * options.n_best))
        source = pad([unit.ids for unit in units]).to(self.device)
        if options.shortlist:
            allowed = self.shortlist.allowed(source, options.shortlist)
            found = search_among(self.models, self._as_one, allowed, source, options, demands)
        else:
            found = search(self._as_one(self.models), source, options, demands)
        if not all(found):
            free = dataclasses.replace(options.plain(1), no_repeat_ngram=0, min_length=1, min_length_ratio=0.0, max_length=1)
            if not all(search(self._as_one(self.models), source, free)):  # not for the rules' sake
                raise UserError("the model gives no probabilities (NaN): its weights are damaged, or its training went astray")
        return found

    def _as_one(self, models: Sequence[Model]) -> Model:
        return self.wrap(models[0] if len(models) == 1 else Ensemble(models))

    def _rank(self, unit: Unit, hypotheses: list[Hypothesis], options: SearchConfig) -> Translation:
        """The texts of hypotheses, best first."""
        if not hypotheses:
            return Translation(refused="no translation keeps to all that was asked for; not translated")
        texts = self.target_tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
        if options.copy_unknown:
            texts = [
                self._copy_unknown(unit, hypothesis, options) if UNK_ID in hypothesis.ids else text
                for text, hypothesis in zip(texts, hypotheses, strict=True)]
        texts = [as_line(text) for text in texts]
        spoken = [i for i, text in enumerate(texts) if text]
        if not spoken:
            return Translation(refused=ONLY_EMPTY)
        texts, hypotheses = [texts[i] for i in spoken], [hypotheses[i] for i in spoken]
        best_of_text: dict[str, Hypothesis] = {}  # pieces may differ where texts do not
        for text, hypothesis in zip(texts, hypotheses, strict=True):
            best_of_text.setdefault(text, hypothesis)
        if options.mbr:
            texts = by_expected_score(texts, options.mbr)
            hypotheses = [best_of_text[text] for text in texts]
        elif not options.sampling:
            texts, hypotheses = list(best_of_text), list(best_of_text.values())
        pair = (unit.ids, [*hypotheses[0].ids, EOS_ID])
        return Translation(tuple(texts), tuple(hypotheses), pairs=(pair,))

    def _copy_unknown(self, unit: Unit, hypothesis: Hypothesis, options: SearchConfig) -> str:
        """The text, with what the source spells in place of unknown pieces: of its own unknown ones, the most attended to."""
        [rating] = self.rate([(unit.ids, [*hypothesis.ids, EOS_ID])], options)
        tags = self.source_tokenizer.count_tags(unit.ids)
        ids, attention = unit.ids[tags:-1], rating.attention[:, tags:-1]
        spelled = self.source_tokenizer.spell(unit.text)
        unknown = [i for i, piece in enumerate(ids) if piece == UNK_ID] or list(range(len(ids)))
        pieces = self.target_tokenizer.pieces(hypothesis.ids)
        for place, piece in enumerate(hypothesis.ids):
            if piece == UNK_ID:
                pieces[place] = spelled[unknown[int(attention[place, unknown].argmax())]]
        return self.target_tokenizer.decode_pieces(pieces)

    def rate(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], options: SearchConfig) -> list[Rating]:
        """What the models make of each pair of a source and an output, both of which end in EOS."""
        for model in self.models:
            model.eval()

        def of_batch(batch: list[int]) -> list[Rating]:
            sources, outputs = zip(*(pairs[i] for i in batch), strict=True)
            return rate(self.models, sources, outputs, self.device)

        result = dict(self._in_batches({i: max(map(len, pair)) for i, pair in enumerate(pairs)}, of_batch, options))
        return [result[i] for i in range(len(pairs))]

    def tokens_at_once(self, options: SearchConfig) -> int:
        """`search.batch_tokens`, with auto settled."""
        if options.batch_tokens != "auto":
            return options.batch_tokens
        return TOKENS_ON_GPU if self.device.type == "cuda" else TOKENS_ON_CPU

    def _in_batches(
        self, sizes: dict[int, int], work: Callable[[list[int]], list[Result]], options: SearchConfig
    ) -> Iterator[tuple[int, Result]]:
        """What comes of work on texts of these sizes, by number, in batches of like size, the largest first.

        A batch, padded, keeps to `search.batch_tokens`, or to half of what memory has not sufficed for.
        """
        waiting = sorted(sizes, key=lambda i: -sizes[i])
        while waiting:
            most = min(self.tokens_at_once(options), self._suffices)
            batch = waiting[: max(1, most // sizes[waiting[0]])]
            try:
                with advise_when_out_of_memory(f"lower search.beam_size={options.beam_size}, or search.max_source_tokens"):
                    results = work(batch)
            except OutOfMemory:
                if len(batch) == 1:
                    raise
                tried = len(batch) * sizes[batch[0]]
                self._suffices = tried // 2
                log(f"warning: no memory for a batch of {tried} tokens; going on as with search.batch_tokens={self._suffices}")
                continue
            yield from zip(batch, results, strict=True)
            del waiting[: len(batch)]


def join_allowed(sentences: Sequence[Translation], options: SearchConfig) -> Translation:
    """The translation of a text from those of its sentences; refused where a banned phrase arises between two of them."""
    translation = join(sentences)
    if not options.banned or translation.sentences == 1:
        return translation
    free = _leaving_out(whole_words(*options.banned), translation)
    if free.texts[:1] != translation.texts[:1]:
        return Translation(refused="its sentences hold a banned phrase where two of them meet; not translated")
    return free


def _leaving_out(banned: re.Pattern[str], translation: Translation) -> Translation:
    """Without the outputs that hold banned phrases."""
    allowed = [number for number, text in enumerate(translation.texts) if not banned.search(normal(text))]
    return dataclasses.replace(
        translation, texts=tuple(translation.texts[i] for i in allowed),
        hypotheses=tuple(translation.hypotheses[i] for i in allowed if translation.hypotheses))


def as_line(text: str) -> str:
    """`text` without line breaks, so that a file holds one a line; byte pieces could spell them."""
    return text.replace("\r", " ").replace("\n", " ").strip()
