"""What is served: the models by language pair, and what becomes of a text."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from translator.config.commands import ServeConfig
from translator.config.languages import tag_of
from translator.config.options import SearchConfig
from translator.inference.planning import Unit
from translator.inference.translation import Request, Translation
from translator.inference.translator import Translator, join_allowed
from translator.model.active_hypotheses import OpenRows
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.search.engine import Model
from translator.serve.batcher import Batcher
from translator.serve.detection import Detector, name_of
from translator.serve.explanation import explain


class Unanswerable(Exception):
    """A request that asks for what is not to be had; the message says what."""


class Interruptible:
    """A model that asks before each step of a search whether others go first."""

    def __init__(self, model: Model, before_step: Callable[[], None]) -> None:
        self._model = model
        self._before_step = before_step
        self.encode, self.start, self.log_probabilities = model.encode, model.start, model.log_probabilities

    def decode_step(self, tokens: Tensor, state: Any, rows: OpenRows) -> Any:
        self._before_step()
        return self._model.decode_step(tokens, state, rows)


@dataclass(frozen=True)
class Kind:
    """What sentences must have in common to be translated together."""

    source: str
    target: str
    n_best: int
    explained: bool


@dataclass(frozen=True)
class Answer:
    """What became of a sentence."""

    translation: Translation
    explanation: dict[str, Any] | None


class Service:
    """Texts in, translations out, by the run of their language pair, together with those of others."""

    def __init__(self, config: ServeConfig, runs: Sequence[str]) -> None:
        """Load the runs; UserError where one cannot be loaded, or two are for the same languages."""
        self.search = config.search
        self.translators: dict[tuple[str, str], Translator] = {}
        for run in runs:
            translator = Translator(run, device=config.device, precision=config.precision)
            for source, target in RunFolder(run).load_config().data.directions:
                planned = translator.plan(_asked("a", translator, target), self.search)
                if isinstance(planned, str):  # what is wrong with the search is told now
                    raise UserError(f"run={run}: {planned}")
                if (source, target) in self.translators:
                    raise UserError(f"run={run}: another run is for {source} to {target} too; name one of them")
                self.translators[source, target] = translator
        self.codes = sorted(set(itertools.chain.from_iterable(self.translators)))
        self.detector = Detector(self.codes)
        tokens = next(iter(self.translators.values())).tokens_at_once(self.search)
        self.batcher: Batcher[Kind, Unit] = Batcher(
            self._work, size=lambda unit: len(unit.ids), batch_tokens=tokens // self.search.beam_size,
            most_waiting=config.max_waiting)
        for translator in set(self.translators.values()):
            translator.wrap = partial(Interruptible, before_step=self.batcher.give_way)

    def close(self) -> None:
        self.batcher.close()

    @property
    def languages(self) -> list[dict[str, Any]]:
        """Every language, with those into which it is translated."""
        return [
            {"code": code, "name": name_of(code), "targets": [t for s, t in self.translators if s == code]}
            for code in dict.fromkeys(itertools.chain.from_iterable(self.translators))]

    async def detect(self, text: str) -> list[dict[str, Any]]:
        """All languages that can be told apart, the likeliest first."""
        return await asyncio.to_thread(self.detector.detect, text)

    async def translate(
        self, texts: Sequence[str], sources: Sequence[str], target: str, *, n_best: int = 1, explained: bool = False
    ) -> list[list[list[Answer]]]:
        """Of each text, in its language, the lines, and of each line the sentences."""
        async def of_source(source: str) -> list[list[list[Answer]]]:
            return await self._translate(
                Kind(source, target, n_best, explained), [text for text, s in zip(texts, sources, strict=True) if s == source])

        groups = dict.fromkeys(sources)
        tasks = [asyncio.create_task(of_source(source)) for source in groups]
        try:
            answers = dict(zip(groups, map(iter, await asyncio.gather(*tasks)), strict=True))
        finally:
            for task in tasks:  # where one has failed, nobody waits for the others
                task.cancel()
        return [next(answers[source]) for source in sources]

    async def _translate(self, kind: Kind, texts: list[str]) -> list[list[list[Answer]]]:
        plans = await asyncio.to_thread(self._plan, kind, texts)
        units = [unit for lines in plans for line in lines for unit in line]
        future: Future[list[Answer]] = self.batcher.submit(kind, units)
        answered = await asyncio.wrap_future(future)
        answers = iter(answered)
        return [[[next(answers) for _ in line] for line in lines] for lines in plans]

    def _translator(self, kind: Kind) -> Translator:
        for code in (kind.source, kind.target):
            if not any(code in pair for pair in self.translators):
                raise Unanswerable(f"{code} is not supported")
        if (kind.source, kind.target) not in self.translators:
            raise Unanswerable(f"{name_of(kind.target)} ({kind.target}) is not available as a target language from "
                               f"{name_of(kind.source)} ({kind.source})")
        return self.translators[kind.source, kind.target]

    def _plan(self, kind: Kind, texts: list[str]) -> list[list[list[Unit]]]:
        """The sentences of each line of each text."""
        translator = self._translator(kind)
        plans: list[list[list[Unit]]] = []
        for text in texts:
            plans.append([])
            for number, line in enumerate(text.split("\n"), 1):
                plan = translator.plan(_asked(line.removesuffix("\r"), translator, kind.target), self.search)
                if isinstance(plan, str):
                    raise Unanswerable(f"line {number}: {plan}")
                plans[-1].append(plan)
        return plans

    def _work(self, kind: Kind, units: list[Unit]) -> list[Answer]:
        """What the batcher's thread does."""
        translator = self.translators[kind.source, kind.target]
        translations = translator.translate_units(units, dataclasses.replace(self.search, n_best=kind.n_best))
        explanations = explain(translator, units, translations, self.search) if kind.explained else [None] * len(units)
        return [Answer(*pair) for pair in zip(translations, explanations, strict=True)]


def _asked(line: str, translator: Translator, target: str) -> Request:
    """A line, told by a tag to which language, where the model has several."""
    return Request((tag_of(target) if translator.source_tokenizer.tags else "") + line)


def texts_of(text: str, lines: Sequence[Sequence[Answer]], n_best: int, search: SearchConfig) -> list[str]:
    """The translations of a text from those of its lines, the best first, without repetitions; its line breaks are kept."""
    of_lines = []
    for number, (line, answers) in enumerate(zip(text.split("\n"), lines, strict=True), 1):
        translation = join_allowed([answer.translation for answer in answers], search)
        if translation.refused:
            raise Unanswerable(f"line {number}: {translation.refused}")
        end = "\r" if line.endswith("\r") else ""
        of_lines.append([text + end for text in translation.texts])
    ranked = ("\n".join(texts[min(rank, len(texts) - 1)] for texts in of_lines) for rank in range(n_best))
    return list(dict.fromkeys(ranked))


def untouched(text: str) -> list[list[Answer]]:
    """Return the answers to a text that needs no translation: its lines."""
    def answer(line: str) -> Answer:
        translation = {"text": line, "score": 0.0, "hit_limit": False, "tokens": []}
        return Answer(Translation((line,)), {"source": [line], "translations": [translation]})

    return [[answer(line.removesuffix("\r"))] for line in text.split("\n")]
