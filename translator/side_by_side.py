"""Speed of decoding beside other programs that run the same weights on a CPU, all in turn (floor 8)."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch

from translator.benchmark import time_file
from translator.checkpoint import RunFolder
from translator.config import SearchConfig
from translator.console import say
from translator.device import DecodingPrecision, tune_cpu
from translator.export import exportable, module_of
from translator.export.decoding import Decoding
from translator.metrics import score
from translator.workers import Job

# What is written for each format, by the name that it is told under.
EXPORTS: dict[str, dict[str, dict[str, Any]]] = {
    "ctranslate2": {f"ctranslate2 {name}": {"quantization": name} for name in ("float32", "int8")},
    "huggingface": {"huggingface float32": {}}}
BEAM_SIZES = (1, 5)
# Sentences that are translated one after the other, which takes long, and how many of them before the clock starts.
ALONE = 100
WARM_UP = 10

Translate = Callable[[Sequence[str]], list[str]]
Figures = dict[str, dict[str, dict[str, float]]]  # by setting, system and name
Result = TypeVar("Result")


class System(Protocol):
    """A program with the weights, which a process of its own loads anew for each figure."""

    def of_file(self, sources: Sequence[str], beam_size: int, *, workers: int) -> tuple[float, list[str]]:
        """Sentences a second in a second pass over sources, as fast as so many cores can, and the texts."""
        ...

    def one_by_one(self, sources: Sequence[str], beam_size: int) -> float:
        """Sentences a second where each waits for the one before, on one thread."""
        ...


@dataclass(frozen=True)
class Ours:
    """This one, in some precision."""

    job: Job

    def of_file(self, sources: Sequence[str], beam_size: int, *, workers: int) -> tuple[float, list[str]]:
        torch.set_num_threads(workers)
        tune_cpu()
        job = dataclasses.replace(self.job, search=_search(self.job.search, beam_size))
        seconds, translations = time_file(job, sources, repeats=1, workers=workers)
        return len(sources) / seconds, [translation.text for translation in translations]

    def one_by_one(self, sources: Sequence[str], beam_size: int) -> float:
        torch.set_num_threads(1)
        tune_cpu()
        translator, search = self.job.load(), _search(self.job.search, beam_size)
        return _one_by_one(lambda texts: [each.text for each in translator.translate(texts, search)], sources)


@dataclass(frozen=True)
class Exported:
    """Another one, for which the weights stand in a folder."""

    form: str
    folder: Path
    decodings: Mapping[int, Decoding]  # by beam size

    def of_file(self, sources: Sequence[str], beam_size: int, *, workers: int) -> tuple[float, list[str]]:
        translate = self._decoder(beam_size, threads=workers)
        translate(sources)
        start = time.perf_counter()
        texts = translate(sources)
        return len(sources) / (time.perf_counter() - start), texts

    def one_by_one(self, sources: Sequence[str], beam_size: int) -> float:
        return _one_by_one(self._decoder(beam_size, threads=1), sources)

    def _decoder(self, beam_size: int, *, threads: int) -> Translate:
        translate: Translate = module_of(self.form).decoder(self.folder, self.decodings[beam_size], threads=threads)
        return translate


def measure_side_by_side(
    run: Path, sources: Sequence[str], references: Sequence[str], *, formats: Sequence[str],
    precisions: Sequence[DecodingPrecision], repeats: int, workers: int,
) -> Figures:
    """Sentences a second: medians of `repeats` rounds, in each of which every system has its turn.

    Of whole files also BLEU, and how many of the texts are those in the first of our precisions.
    """
    config = RunFolder(run).load_config()
    figures: Figures = defaultdict(dict)
    with TemporaryDirectory() as folder:
        systems: dict[str, System] = dict(_exported(run, config.search, Path(folder), formats))
        for precision in precisions:
            systems[f"this {precision}"] = Ours(Job((str(run),), "cpu", precision, config.search, details=False))
        for beam_size in BEAM_SIZES:
            texts: dict[str, list[str]] = {}
            file: dict[str, list[float]] = defaultdict(list)
            alone: dict[str, list[float]] = defaultdict(list)
            for number, (name, system) in itertools.product(range(1, repeats + 1), systems.items()):
                rate, texts[name] = _in_own_process(system.of_file, sources, beam_size, workers=workers)
                file[name].append(rate)
                alone[name].append(_in_own_process(system.one_by_one, sources[:ALONE], beam_size))
                say(f"beam {beam_size}, round {number}: {name} {rate:,.1f} sentences/s, one by one {alone[name][-1]:,.1f}")
            first = texts[f"this {precisions[0]}"]
            for name in systems:
                figures[f"beam_{beam_size}_file"][name] = {
                    "sentences_per_second": statistics.median(file[name]),
                    "alike": sum(text == ours for text, ours in zip(texts[name], first, strict=True)),
                    "bleu": score(texts[name], references, config.data.target)["bleu"].value}
                figures[f"beam_{beam_size}_one_by_one"][name] = {"sentences_per_second": statistics.median(alone[name])}
    return figures


def side_by_side_table(figures: Figures) -> list[str]:
    """What `measure_side_by_side` gives, a line for each setting and system."""
    return [
        f"{setting.replace('_', ' '):<18} {name:<20} {row['sentences_per_second']:>8,.1f} sentences/s"
        + (f", BLEU {row['bleu']:.2f}, {row['alike']:,.0f} texts alike" if "bleu" in row else "")
        for setting, systems in figures.items() for name, row in systems.items()]


def _exported(run: Path, search: SearchConfig, folder: Path, formats: Sequence[str]) -> dict[str, Exported]:
    """The run's weights written for other programs."""
    translator, mean_target = exportable(run), RunFolder(run).mean_target()
    decodings = {
        size: Decoding.nearest(_search(search, size), translator.models[0].config, mean_target) for size in BEAM_SIZES}
    systems = {}
    for form in formats:
        for name, options in EXPORTS[form].items():
            (folder / name).mkdir()
            module_of(form).write(translator, decodings[BEAM_SIZES[0]], folder / name, **options)
            systems[name] = Exported(form, folder / name, decodings)
    return systems


def _search(search: SearchConfig, beam_size: int) -> SearchConfig:
    """Plain search, with a length penalty that other programs have too."""
    return dataclasses.replace(search.plain(beam_size), length_penalty_form="power")


def _one_by_one(translate: Translate, sources: Sequence[str]) -> float:
    for source in sources[:WARM_UP]:
        translate([source])
    start = time.perf_counter()
    for source in sources:
        translate([source])
    return len(sources) / (time.perf_counter() - start)


def _in_own_process(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()
