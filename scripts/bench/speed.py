"""Measure speed: `python scripts/bench/speed.py data=multi30k model=small`. Overrides are scripts/train.py's, except init.

--run=RUN measures decoding with that run instead.
--against=CHECKOUT measures another checkout of this repository by the same options, alternating with this one.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from training import ROOT, machine, measure_training, options_of_training

from translator.config.options import SearchConfig
from translator.data.preparation import load_split
from translator.inference.translator import Translator
from translator.metrics.scores import METRICS, score
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runtime.atomic_files import require_writable, writing
from translator.runtime.console import log
from translator.runtime.device import Precision, tune_cpu
from translator.runtime.errors import UserError

SCRIPTS = ("scripts/bench/speed.py", "scripts/benchmark.py")  # the newest name first
PRECISIONS = (Precision.FP32, Precision.BF16, Precision.INT8)
BEAM_SIZES = (1, 5)  # greedy, and the search that most publish
ONE_BY_ONE = 100  # sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="options of scripts/train.py; with --run only device= and search.")
    parser.add_argument("--updates", type=positive, default=20, help="updates in a timed stretch (20)")
    parser.add_argument("--repeats", type=positive, default=5, help="stretches or passes, whose median counts (5)")
    parser.add_argument("--run", type=Path, help="measure decoding of this run on its test split")
    parser.add_argument(
        "--decode-in", action="append", type=Precision, choices=PRECISIONS,
        help="precision of decoding, repeatable (fp32, bf16 and, on a CPU, int8)")
    parser.add_argument("--sentences", type=positive, default=200, help="test sentences to decode (200)")
    parser.add_argument("--trace", type=Path, help="write a profile for chrome://tracing here")
    parser.add_argument("--output", type=Path, default=Path("benchmark.json"), help="the report's file (benchmark.json)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to measure in alternation")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds with --against (3)")
    options = parser.parse_intermixed_args()
    for name in ("updates", "trace") if options.run else ("decode_in", "sentences"):
        if getattr(options, name) != parser.get_default(name):
            needed = "Remove it or --run" if options.run else "Give --run=RUN"
            raise UserError(f"--{name.replace('_', '-')}: has no effect on what is measured. {needed}.")
    for target in filter(None, (options.output, options.trace)):
        require_not_of_a_run(target)
        require_writable(target.parent)
    text = json.dumps(compare(options) if options.against else measure(options), indent=2)
    with writing(options.output):
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n", encoding="utf-8")
    print(text)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure training, or decoding of a run."""
    tune_cpu(training=options.run is None)
    config = options_of_training(options.overrides)
    report: dict[str, Any] = {"machine": machine(config)}
    if options.run is None:
        figures = measure_training(config, updates=options.updates, repeats=options.repeats, trace=options.trace)
        return report | {"training": figures}
    for override in options.overrides:
        if override.split("=")[0].split(".")[0] not in {"device", "search"}:
            raise UserError(f"{override}: is an option of training. With --run give only device= and search.")
    device = report["machine"]["device"]
    precisions = options.decode_in or [name for name in PRECISIONS if name is not Precision.INT8 or device == "cpu"]
    figures = measure_decoding(
        options.run, config.search, device=device, precisions=precisions, sentences=options.sentences, repeats=options.repeats)
    return report | {"search": dataclasses.asdict(config.search), "decoding": figures}


def measure_decoding(
    run: Path, search: SearchConfig, *, device: str, precisions: Sequence[Precision], sentences: int, repeats: int
) -> dict[str, Any]:
    """Translate the first test sentences of a run in each precision and setting by turns; medians of `repeats` rounds."""
    measured = dataclasses.replace(search.plain(max(BEAM_SIZES)), shortlist=search.shortlist)
    search.require_like(measured, "only plain search is measured, greedy and with beam 5")
    translators = {precision: Translator(run, device=device, precision=precision) for precision in precisions}
    folder = RunFolder(run)
    test = load_split(folder.load_data(), "test")[:sentences]
    sources, references = list(test["source"]), list(test["target"])
    bleu = {"bleu": METRICS["bleu"](folder.load_config().data.language)}
    figures: dict[str, Any] = {precision: {} for precision in precisions}
    for beam_size, one_by_one in itertools.product(BEAM_SIZES, (False, True)):
        options = dataclasses.replace(measured, beam_size=beam_size)
        groups = [[source] for source in sources[:ONE_BY_ONE]] if one_by_one else [sources]
        rates: dict[str, list[float]] = {precision: [] for precision in precisions}
        texts: dict[str, list[str]] = {}
        for _, (precision, translator) in itertools.product(range(1 + repeats), translators.items()):  # the first to warm up
            start = time.perf_counter()
            texts[precision] = [text for group in groups for text in translator(group, options)]
            rates[precision].append(len(texts[precision]) / (time.perf_counter() - start))
        setting = f"beam_{beam_size}_batch_{1 if one_by_one else 'file'}"
        for name, found in texts.items():
            rate = statistics.median(rates[name][1:])
            log(f"{name:<5} {setting.replace('_', ' '):<18} {rate:>9,.1f} sentences/s")
            scores = score(bleu, sources[: len(found)], found, references[: len(found)])
            figures[name][setting] = {"sentences_per_second": rate, "bleu": scores["bleu"].value}
    return figures


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure this checkout and another alternately, each by its own script; the medians of both and their ratio by figure."""
    checkouts = {"against": options.against.resolve(), "this": ROOT}
    arguments = list(options.overrides)
    for name in ("updates", "repeats", "run", "decode_in", "sentences", "output"):
        given = getattr(options, name)
        values = given if isinstance(given, list) else filter(None, [given])
        arguments += [f"--{name.replace('_', '-')}={value}" for value in values]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number, name in itertools.product(range(1, options.rounds + 1), checkouts):
        log(f"round {number}: {checkouts[name]}")
        rounds[name].append(dict(flat(measured_by(checkouts[name], arguments))))
    medians = {
        figure: {name: statistics.median(measured[figure] for measured in rounds[name]) for name in checkouts}
        for figure in rounds["this"][0] if figure in rounds["against"][0]}
    for figure, of in medians.items():
        ratio = f" {of['this'] / of['against']:>8.3f} x" if of["against"] else ""
        log(f"{figure:<56} {of['against']:>12,.2f} {of['this']:>12,.2f}{ratio}")
    return {"rounds": rounds, "medians": medians}


def measured_by(checkout: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a checkout's script on its own code, and return the figures of its report."""
    script = next((checkout / name for name in SCRIPTS if (checkout / name).is_file()), None)
    if script is None:
        raise UserError(f"--against: {checkout} is no checkout of this repository. Make one with git worktree add.")
    ended = subprocess.run(
        [sys.executable, script, *arguments], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(checkout)})
    if ended.returncode:
        raise UserError(f"{script}: failed. Try its command: {' '.join(arguments)}")
    report = json.loads(ended.stdout)
    return {name: report[name] for name in ("training", "decoding") if name in report}


def flat(report: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a report by dotted name."""
    if isinstance(report, dict):
        for key, value in report.items():
            yield from flat(value, f"{name}.{key}".removeprefix("."))
    elif isinstance(report, int | float) and not isinstance(report, bool):
        yield name, report


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text}")
    return int(text)


if __name__ == "__main__":
    with one_line_errors():
        main()
