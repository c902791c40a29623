"""Speed of decoding beside other programs that run the same weights, all in turn."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch

from translator.bench.benchmark import BEAM_SIZES, time_file
from translator.bench.fresh_process import in_fresh_process
from translator.config.options import SearchConfig
from translator.export import exportable, module_of
from translator.export.decoding import Decoding, expressible
from translator.inference.workers import Job
from translator.metrics.scores import score
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision


@dataclass(frozen=True)
class Setting:
    """With what options an exporter writes for another program, and what of the search is changed."""

    written: Mapping[str, Any]
    searching: Mapping[str, Any] = field(default_factory=dict)


# The stop rule that is CTranslate2's by default, which ends sooner.
IMPATIENT = {"keep_places": True, "patience": 1}
# By device and format, then by the name that it is told under.
SETTINGS: dict[str, dict[str, dict[str, Setting]]] = {
    "cpu": {
        "ctranslate2": {
            "ctranslate2 float32": Setting({"quantization": "float32"}),
            "ctranslate2 float32, patience=1": Setting({"quantization": "float32"}, IMPATIENT),
            "ctranslate2 int8": Setting({"quantization": "int8"})},
        "huggingface": {"huggingface float32": Setting({})}},
    "cuda": {
        "ctranslate2": {
            "ctranslate2 float32": Setting({"quantization": "float32"}),
            "ctranslate2 float16": Setting({"quantization": "float16"}),
            "ctranslate2 float16, patience=1": Setting({"quantization": "float16"}, IMPATIENT)},
        "huggingface": {
            "huggingface float32": Setting({}), "huggingface bf16": Setting({"dtype": torch.bfloat16})}}}
# Sentences that other programs are given to search together, by device, format and beam size. On two cores of an AMD Zen 3 each
# was fastest with as many, of 32, 64 and 128 (4 + 4 layers of width 256); on a GPU others than 512 were not tried.
BATCH_SIZES = {
    "cpu": {"ctranslate2": {1: 128, 5: 128}, "huggingface": {1: 128, 5: 32}},
    "cuda": {"ctranslate2": {1: 512, 5: 512}, "huggingface": {1: 512, 5: 512}}}
# Sentences that are searched each by itself, which takes long, and how many of them a system has at a turn one by one.
ALONE = 100
TURN = 10

Translate = Callable[[Sequence[str]], list[str]]
Figures = dict[str, dict[str, dict[str, float]]]  # by setting, system and name
_translate: Translate  # of the one system that a process runs one by one


class System(Protocol):
    """A program with the weights."""

    @property
    def searching(self) -> Mapping[str, Any]:
        """What is changed of the search that all are measured with."""
        ...

    def of_file(self, sources: Sequence[str], beam_size: int, *, workers: int, singly: bool) -> tuple[float, list[str]]:
        """Sentences a second in a second pass over sources, as fast as so many cores can, and the texts.

        singly: each sentence is a batch of its own.
        """
        ...

    def on_one_thread(self, beam_size: int) -> Translate:
        """What translates so in this process."""
        ...


@dataclass(frozen=True)
class Ours:
    """This one, in some precision."""

    job: Job
    searching: Mapping[str, Any] = field(default_factory=dict)

    def of_file(self, sources: Sequence[str], beam_size: int, *, workers: int, singly: bool) -> tuple[float, list[str]]:
        torch.set_num_threads(workers)
        tune_cpu()
        batch = {"batch_tokens": 1} if singly else {}
        job = dataclasses.replace(self.job, search=_search(self.job.search, beam_size, {**self.searching, **batch}))
        seconds, translations = time_file(job, sources, repeats=1, workers=workers)
        return len(sources) / seconds, [translation.text for translation in translations]

    def on_one_thread(self, beam_size: int) -> Translate:
        torch.set_num_threads(1)
        tune_cpu()
        translator, search = self.job.load(), _search(self.job.search, beam_size, self.searching)
        return lambda texts: [each.text for each in translator.translate(texts, search)]


@dataclass(frozen=True)
class Exported:
    """Another one, for which the weights stand in a folder."""

    form: str
    folder: Path
    device: str
    decodings: Mapping[int, Decoding]  # by beam size
    searching: Mapping[str, Any]

    def of_file(self, sources: Sequence[str], beam_size: int, *, workers: int, singly: bool) -> tuple[float, list[str]]:
        translate = self._on_threads(beam_size, workers, 1 if singly else BATCH_SIZES[self.device][self.form][beam_size])
        translate(sources)
        start = time.perf_counter()
        texts = translate(sources)
        return len(sources) / (time.perf_counter() - start), texts

    def on_one_thread(self, beam_size: int) -> Translate:
        return self._on_threads(beam_size, 1, 1)

    def _on_threads(self, beam_size: int, threads: int, batch_size: int) -> Translate:
        translate: Translate = module_of(self.form).decoder(
            self.folder, self.decodings[beam_size], device=self.device, threads=threads, batch_size=batch_size)
        return translate


def measure_side_by_side(
    run: Path, sources: Sequence[str], references: Sequence[str], search: SearchConfig, *, device: str, formats: Sequence[str],
    precisions: Sequence[Precision], repeats: int, workers: int,
) -> Figures:
    """Sentences a second: medians of `repeats` rounds, in each of which every system has its turn, or many one by one.

    Of files, and of shorter ones whose sentences are searched singly, also BLEU, and how many of the texts are those that the
    same search finds here in the first of our precisions; one by one, on one thread, also how many times as fast as that
    precision here, the median of the turns. UserError where `search` asks for what other programs lack, or for another beam.
    """
    measured = dataclasses.replace(_search(search, max(BEAM_SIZES), {}), length_penalty_form=search.length_penalty_form)
    search.require_like(measured, "what is measured is the search that others have too, greedy and with beam 5")
    language = RunFolder(run).load_config().data.language
    job = partial(Job, (str(run),), device, search=search, details=False)
    ours = f"this {precisions[0]}"
    figures: Figures = {}
    with TemporaryDirectory() as folder:
        systems: dict[str, System] = dict(_exported(run, search, Path(folder), device, formats))
        for precision in precisions:
            systems[f"this {precision}"] = Ours(job(precision))
        systems[f"{ours}, patience=1"] = Ours(job(precisions[0]), IMPATIENT)
        for beam_size in BEAM_SIZES:
            for how, singly, count in (("file", False, len(sources)), ("singly", True, ALONE)):
                rates, texts = _of_file(systems, beam_size, sources[:count], rounds=repeats, workers=workers, singly=singly)
                figures[f"beam_{beam_size}_{how}"] = {
                    name: {
                        "sentences_per_second": statistics.median(rates[name]),
                        "alike": sum(map(operator.eq, texts[name], texts[twin_of(system, systems)])),
                        "bleu": score(texts[name], references[:count], language)["bleu"].value}
                    for name, system in systems.items()}
            seconds = one_by_one(systems, beam_size, sources[:ALONE], rounds=repeats)
            figures[f"beam_{beam_size}_one_by_one"] = {
                name: {
                    "sentences_per_second": 1 / statistics.median(seconds[name]),
                    "times_ours": statistics.median(map(operator.truediv, seconds[ours], seconds[name]))}
                for name in systems}
    return figures


def _of_file(
    systems: Mapping[str, System], beam_size: int, sources: Sequence[str], *, rounds: int, workers: int, singly: bool
) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """What `System.of_file` gives in each round, and the texts."""
    rates: dict[str, list[float]] = defaultdict(list)
    texts: dict[str, list[str]] = {}
    for number, (name, system) in itertools.product(range(1, rounds + 1), systems.items()):
        rate, texts[name] = in_fresh_process(system.of_file, sources, beam_size, workers=workers, singly=singly)
        rates[name].append(rate)
        log(f"beam {beam_size}, {'singly' if singly else 'file'}, round {number}: {name} {rate:,.1f} sentences/s")
    return rates, texts


def one_by_one(
    systems: Mapping[str, System], beam_size: int, sources: Sequence[str], *, rounds: int
) -> dict[str, list[float]]:
    """The seconds a sentence of each system's turns: in one all have the same sentences, and the machine's mood of then."""
    seconds: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), _load, (system, beam_size)))
            for name, system in systems.items()}
        for process in processes.values():
            process.submit(_seconds, sources[:TURN]).result()
        for first in [*range(0, len(sources), TURN)] * rounds:
            turn = sources[first : first + TURN]
            for name, process in processes.items():
                seconds[name].append(process.submit(_seconds, turn).result() / len(turn))
    return seconds


def side_by_side_table(figures: Figures) -> list[str]:
    """What `measure_side_by_side` gives, a line for each setting and system."""
    return [
        f"{setting.replace('_', ' '):<18} {name:<32} {row['sentences_per_second']:>8,.1f} sentences/s, "
        + (f"BLEU {row['bleu']:.2f}, {row['alike']:,.0f} texts alike" if "bleu" in row else f"{row['times_ours']:.2f} x")
        for setting, systems in figures.items() for name, row in systems.items()]


def twin_of(system: System, systems: Mapping[str, System]) -> str:
    """The first of ours that is asked for the same search."""
    return next(name for name, other in systems.items() if isinstance(other, Ours) and other.searching == system.searching)


def _exported(run: Path, search: SearchConfig, folder: Path, device: str, formats: Sequence[str]) -> dict[str, Exported]:
    """The run's weights written for other programs."""
    translator, mean_target = exportable(run), RunFolder(run).mean_target()
    systems = {}
    for form in formats:
        for name, setting in SETTINGS[device][form].items():
            decodings = {
                size: Decoding.nearest(
                    _search(search, size, setting.searching), translator.models[0].config, mean_target)
                for size in BEAM_SIZES}
            (folder / name).mkdir()
            module_of(form).write(translator, decodings[BEAM_SIZES[0]], folder / name, **setting.written)
            systems[name] = Exported(form, folder / name, device, decodings, setting.searching)
    return systems


def _search(search: SearchConfig, beam_size: int, changes: Mapping[str, Any]) -> SearchConfig:
    """What other programs have too, with a length penalty that they have as well."""
    usual = {"length_penalty_form": "power", "keep_places": False, "patience": None}
    return dataclasses.replace(expressible(search, beam_size), **{**usual, **changes})


def _load(system: System, beam_size: int) -> None:
    """Have `_seconds` in this process be those of that system."""
    global _translate
    _translate = system.on_one_thread(beam_size)


def _seconds(sources: Sequence[str]) -> float:
    """For which these are translated, each after the one before."""
    start = time.perf_counter()
    for source in sources:
        _translate([source])
    return time.perf_counter() - start
