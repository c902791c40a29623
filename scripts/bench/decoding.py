"""Speed of decoding a run, greedily and with beam 5, beside other programs with the same weights."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import in_fresh_process

from translator.config.options import SearchConfig
from translator.data.preparation import load_split
from translator.evaluation.held_out import data_of
from translator.export import exportable, module_of
from translator.export.decoding import Decoding, expressible
from translator.inference.translation import Request
from translator.inference.translator import CHUNK
from translator.inference.workers import Job, ready
from translator.metrics.scores import METRICS, score
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision
from translator.runtime.errors import UserError

PRECISIONS = (Precision.FP32, Precision.BF16, Precision.INT8)
ONE_BY_ONE = 100  # sentences
BEAM_SIZES = (1, 5)  # greedy, and the search that most publish
# What each program's exporter is asked to write, by device, program and name of the weights.
EXPORTS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "cpu": {
        "ctranslate2": {"float32": {"quantization": "float32"}, "int8": {"quantization": "int8"}},
        "huggingface": {"float32": {}}},
    "cuda": {
        "ctranslate2": {"float32": {"quantization": "float32"}, "float16": {"quantization": "float16"}},
        "huggingface": {"float32": {}, "bf16": {"dtype": torch.bfloat16}}}}

Translate = Callable[[Sequence[str]], list[str]]
Figures = dict[str, dict[str, dict[str, float]]]  # by system, setting and name


@dataclass(frozen=True)
class Own:
    """This program, in one precision."""

    job: Job

    @contextmanager
    def started(self, beam_size: int, *, workers: int, one_by_one: bool) -> Iterator[Translate]:
        """Load the weights, to translate on so many cores."""
        torch.set_num_threads(workers)
        tune_cpu()
        job = dataclasses.replace(self.job, search=dataclasses.replace(self.job.search, beam_size=beam_size))
        with ready(job, workers=workers) as answers:

            def translate(texts: Sequence[str]) -> list[str]:
                count = min(len(texts), workers * -(-len(texts) // (workers * CHUNK)))
                found = [""] * len(texts)
                shares = answers([[Request(text) for text in texts[number::count]] for number in range(count)])
                for number, share in enumerate(shares):
                    found[number::count] = [translation.text for translation, _ in share]
                return found

            yield translate


@dataclass(frozen=True)
class Exported:
    """Another program, with the weights in a folder."""

    program: str
    folder: Path
    device: str
    decodings: dict[int, Decoding]  # by beam size

    @contextmanager
    def started(self, beam_size: int, *, workers: int, one_by_one: bool) -> Iterator[Translate]:
        """Load the weights, to translate on so many threads."""
        # The fastest of 32, 64 and 128 on two cores of an AMD Zen 3; on a GPU only 512 was tried.
        best = 512 if self.device == "cuda" else 32 if (self.program, beam_size) == ("huggingface", 5) else 128
        yield module_of(self.program).decoder(
            self.folder, self.decodings[beam_size], device=self.device, threads=workers,
            batch_size=1 if one_by_one else best)


System = Own | Exported


def measure_decoding(
    run: Path, search: SearchConfig, *, device: str, precisions: Sequence[Precision], programs: Sequence[str],
    sentences: int, repeats: int, workers: int,
) -> Figures:
    """Translate the first test sentences of a run with every system in turn; medians of `repeats` rounds.

    As a file, on as many cores as there are workers, and one by one on one thread.
    `alike`: how many texts equal those of the first precision. UserError for a search that cannot be compared.
    """
    measured = expressible(search, 5) if programs else dataclasses.replace(search.plain(5), shortlist=search.shortlist)
    search.require_like(measured, "only plain search is measured, greedy and with beam 5")
    if programs:
        if device not in EXPORTS:
            raise UserError(f"--beside: the other programs do not run on {device}. Use device=cpu.")
        measured = dataclasses.replace(measured, length_penalty_form="power")  # the other programs have no other
    folder = RunFolder(run)
    systems: dict[str, System] = {
        name: Own(Job((str(run),), device, name, measured, details=False)) for name in precisions}
    Job((str(run),), device, precisions[0], measured, details=False).load()  # an unreadable run fails here
    test = load_split(data_of(folder), "test")[:sentences]
    sources, references = list(test["source"]), list(test["target"])
    bleu = {"bleu": METRICS["bleu"](folder.load_config().data.language)}
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    texts: dict[str, dict[str, list[str]]] = defaultdict(dict)
    with TemporaryDirectory() as exports:
        systems |= export(run, measured, Path(exports), device, programs)
        for _, (name, system) in itertools.product(range(repeats), systems.items()):
            for setting, (rate, texts[name][setting]) in in_fresh_process(time_system, system, sources, workers).items():
                rates[name][setting].append(rate)
                log(f"{name:<20} {setting.replace('_', ' '):<18} {rate:>9,.1f} sentences/s")
    figures: Figures = defaultdict(dict)
    for name, setting in itertools.product(systems, texts[precisions[0]]):
        found = texts[name][setting]
        figures[name][setting] = {
            "sentences_per_second": statistics.median(rates[name][setting]),
            "bleu": score(bleu, sources[: len(found)], found, references[: len(found)])["bleu"].value,
            "alike": sum(map(operator.eq, found, texts[precisions[0]][setting]))}
    return figures


def export(run: Path, search: SearchConfig, folder: Path, device: str, programs: Sequence[str]) -> dict[str, Exported]:
    """Write the weights of the run for other programs, and return these by name."""
    systems = {}
    for program in programs:
        translator = exportable(run)
        for weights, options in EXPORTS[device][program].items():
            decodings = {
                size: Decoding.nearest(
                    dataclasses.replace(search, beam_size=size), translator.models[0].config, RunFolder(run).mean_target())
                for size in BEAM_SIZES}
            place = folder / f"{program}-{weights}"
            place.mkdir()
            module_of(program).write(translator, decodings[BEAM_SIZES[0]], place, **options)
            systems[f"{program} {weights}"] = Exported(program, place, device, decodings)
    return systems


def time_system(system: System, sources: Sequence[str], workers: int) -> dict[str, tuple[float, list[str]]]:
    """Return by setting the sentences a second in a second pass over the sources, and the texts."""
    figures = {}
    for beam_size, one_by_one in itertools.product(BEAM_SIZES, (False, True)):
        groups = [[source] for source in sources[:ONE_BY_ONE]] if one_by_one else [sources]
        with system.started(beam_size, workers=1 if one_by_one else workers, one_by_one=one_by_one) as translate:
            for group in groups:
                translate(group)
            start = time.perf_counter()
            texts = [text for group in groups for text in translate(group)]
            rate = len(texts) / (time.perf_counter() - start)
        figures[f"beam_{beam_size}_{'one_by_one' if one_by_one else 'batch_file'}"] = rate, texts
    return figures
