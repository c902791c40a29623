"""Compare runs in size, memory, quality and speed: `python scripts/bench/models.py --runs=runs/teacher,runs/student`.

One table in Markdown on stdout. Every measurement has a process of its own: it loads the model, translates every tenth
sentence to warm up, then the first test sentences, in the batches of `make translate`. Each round measures every model
once; figures are medians, of sentences also the range. Seconds are the processor's, of one thread: on an idle machine the
clock's. Memory is the most that the process has held, less what it had after importing the libraries: once the model is
loaded, and at the end.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
import itertools
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from growth import in_fresh_process
from sentencepiece import SentencePieceProcessor
from speed import BEAM_SIZES, positive
from training import machine, options_of_training

from translator.config.options import SearchConfig
from translator.data.preparation import load_split
from translator.evaluation.held_out import require_comparable
from translator.inference.decoding import Decoding
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import Translator
from translator.metrics.scores import METRICS, score
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log, require_stdout
from translator.runtime.device import peak_memory, tune_cpu
from translator.runtime.errors import UserError

# Files of a run folder that translating needs, or reads where they are there.
NEEDED = ("config.yaml", "tokenizer*.model", "SHA256SUMS", "data_report.json", "model.safetensors", "alignment.json",
          "lexicon.safetensors", "calibration.json")
# CTranslate2's batches, in tokens: 1,024 to 8,192 were equally fast on one thread, within a tenth.
CTRANSLATE2_BATCH = 2048
HEADING = (
    "model", "parameters, millions", "weights, MB", "all files, MB", "memory loaded, MB", "memory decoding, MB",
    "BLEU, greedy", "BLEU, beam 5", "chrF, beam 5", "sentences/s, greedy", "words/s, greedy", "sentences/s, beam 5",
    "words/s, beam 5")
Texts = list[str]
Translate = Callable[[Texts], Texts]


@dataclass(frozen=True)
class Decoded:
    """What one process measured."""

    texts: Texts
    seconds: float
    loaded: float  # MB
    peak: float  # MB


@dataclass(frozen=True)
class System:
    """A model as one program runs it."""

    name: str
    load: Callable[..., Translate]  # with the arguments of its beam size
    arguments: dict[int, tuple[Any, ...]]
    parameters: int
    weights: int  # bytes
    files: int  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", required=True, help="run folders, joined by commas; the first has the test split")
    parser.add_argument("--sentences", type=positive, default=1000, help="test sentences to translate (1000)")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds, whose median counts (3)")
    parser.add_argument("--ctranslate2", action="store_true", help="also as CTranslate2 runs them, in float32 and int8")
    options = parser.parse_args()
    require_stdout("the table", "Redirect it to a file: > FILE.")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    torch.set_num_threads(1)
    runs = [Path(run) for run in options.runs.split(",")]
    config = options_of_training(["device=cpu", "precision=fp32"])
    with tempfile.TemporaryDirectory() as exports:
        rows = compare(runs, config.search, options, Path(exports))
        print(", ".join(f"{name} {value}" for name, value in machine(config).items()))
        print(f"\n| {' | '.join(HEADING)} |\n| {' | '.join(['---'] * len(HEADING))} |")
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


def compare(runs: Sequence[Path], search: SearchConfig, options: argparse.Namespace, exports: Path) -> list[list[str]]:
    """Return the rows of the table."""
    require_comparable(runs, None)
    test = load_split(RunFolder(runs[0]).load_data(), "test")[: options.sentences]
    sources, references = list(test["source"]), list(test["target"])
    searches = {beam: search.plain(beam) for beam in BEAM_SIZES}
    systems = [system_of(run, searches) for run in runs]
    if options.ctranslate2:
        systems += [system for run in runs for system in exported(run, searches, exports)]
    measured: dict[tuple[str, int], list[Decoded]] = {}
    for number, beam, system in itertools.product(range(options.rounds), BEAM_SIZES, systems):
        found = in_fresh_process(decode, system.load, system.arguments[beam], sources)
        measured.setdefault((system.name, beam), []).append(found)
        log(f"round {number + 1}  {system.name:<40} beam {beam}  {len(sources) / found.seconds:>8,.1f} sentences/s")
    metrics = {name: METRICS[name](RunFolder(runs[0]).load_config().data.language) for name in ("bleu", "chrf")}

    def scores(decoded: Decoded) -> dict[str, str]:
        return {name: f"{value.value:.2f}" for name, value in score(metrics, sources, decoded.texts, references).items()}

    return [row_of(system, [measured[system.name, beam] for beam in BEAM_SIZES], sources, scores) for system in systems]


def row_of(
    system: System, measured: Sequence[Sequence[Decoded]], sources: Texts, scores: Callable[[Decoded], dict[str, str]]
) -> list[str]:
    """Return a row of the table. measured: the rounds of greedy search, and of beam search."""
    greedy, beam = (scores(rounds[0]) for rounds in measured)
    words = sum(len(source.split()) for source in sources)
    speeds = []
    for rounds in measured:
        median, slowest, fastest = (
            of(decoded.seconds for decoded in rounds) for of in (statistics.median, max, min))
        spread = f" ({len(sources) / slowest:,.0f} to {len(sources) / fastest:,.0f})" if len(rounds) > 1 else ""
        speeds += [f"{len(sources) / median:,.0f}{spread}", f"{words / median:,.0f}"]
    memory = [statistics.median(getattr(decoded, name) for decoded in measured[-1]) for name in ("loaded", "peak")]
    return [
        system.name, f"{system.parameters / 1e6:.2f}", f"{system.weights / 1e6:.1f}", f"{system.files / 1e6:.1f}",
        *(f"{megabytes:,.0f}" for megabytes in memory), greedy["bleu"], beam["bleu"], beam["chrf"], *speeds]


def system_of(run: Path, searches: dict[int, SearchConfig]) -> System:
    folder = RunFolder(run)
    parameters = sum(weight.numel() for weight in folder.load_weights().values())
    files = {file for name in NEEDED for file in run.glob(name)}
    arguments = {beam: (run, search) for beam, search in searches.items()}
    return System(str(run), load_run, arguments, parameters, size_of([folder.model_file]), size_of(files))


def exported(run: Path, searches: dict[int, SearchConfig], exports: Path) -> Iterator[System]:
    """Yield a run as CTranslate2 runs it. One whose weights are in int8 is the export of the run they were made of."""
    from translator.export.ctranslate2 import decoding_options, write  # an extra, which not everybody installs

    folder = RunFolder(run)
    if folder.has_int8_weights():
        return
    translator = Translator(TrainedModel.load(run, "cpu"))
    parameters = sum(weight.numel() for weight in folder.load_weights().values())
    config, mean = translator.models[0].config, folder.mean_target()
    for quantization in ("float32", "int8"):
        place = exports / f"{run.resolve().name}-{quantization}"
        place.mkdir()
        arguments = {}
        try:
            for beam, search in searches.items():
                decoding = Decoding.nearest(search, config, mean)
                arguments[beam] = (place, decoding_options(translator, decoding), search)
            write(translator, decoding, place, quantization)
        except UserError as refusal:
            log(f"{run}: not exported to CTranslate2: {refusal}")
            return
        yield System(f"{run}, CTranslate2 {quantization}", load_export, arguments, parameters, size_of([place / "model.bin"]),
                     size_of(place.iterdir()))


def size_of(files: Any) -> int:
    """Return the bytes of files."""
    return sum(file.stat().st_size for file in files)


def decode(load: Callable[..., Translate], arguments: tuple[Any, ...], sources: Texts) -> Decoded:
    """Load a system and translate; for a process of its own."""
    tune_cpu()
    torch.set_num_threads(1)
    before = peak()
    translate = load(*arguments)
    loaded = peak()
    translate(sources[::10])
    start = time.process_time()
    texts = translate(sources)
    return Decoded(texts, time.process_time() - start, loaded - before, peak() - before)


def peak() -> float:
    """Return the peak memory of this process in MB. Linux's `ru_maxrss` would be at least that of the process before it."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 2**10 / 1e6 if found else peak_memory(torch.device("cpu")) * 2**30 / 1e6


def load_run(run: Path, search: SearchConfig) -> Translate:
    translator = Translator(run, device="cpu")
    return lambda texts: [translation.text for translation in translator.stream(texts, search)]


def load_export(folder: Path, options: dict[str, Any], search: SearchConfig) -> Translate:
    """Load what `translator.export.ctranslate2` wrote."""
    import ctranslate2

    model = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1)
    source, target = (
        SentencePieceProcessor(str(next(file for file in (folder / f"tokenizer.{side}.model", folder / "tokenizer.model")
                                        if file.is_file()))) for side in ("source", "target"))

    def translate(texts: Texts) -> Texts:
        pieces = source.encode(texts, out_type=str)
        limit = int(search.max_length_ratio * (1 + max(map(len, pieces)))) + search.max_length_extra
        results = model.translate_batch(
            pieces, **options, max_decoding_length=limit, max_batch_size=CTRANSLATE2_BATCH, batch_type="tokens")
        return target.decode([result.hypotheses[0] for result in results])

    return translate


if __name__ == "__main__":
    with one_line_errors():
        main()
