"""Measure speed: `python scripts/bench/speed.py data=multi30k model=small`. Overrides are scripts/train.py's, except init.

--run=RUN measures decoding with that run instead, and --beside other programs with its weights, in turn.
--against=CHECKOUT measures another checkout of this repository by the same options, in turn with this one.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import machine, options_of_training
from decoding import EXPORTS, PRECISIONS, measure_decoding
from training import measure_training

from translator.runs.run_folder import require_not_of_a_run
from translator.runtime.atomic_files import require_writable, writing
from translator.runtime.console import log
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision
from translator.runtime.errors import UserError

HERE = Path(__file__).resolve().parents[2]
SCRIPTS = ("scripts/bench/speed.py", "scripts/benchmark.py")  # the newest name first
OF_TRAINING, OF_DECODING = ("updates", "trace"), ("decode_in", "beside", "workers", "sentences")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="options of scripts/train.py; with --run only device= and search.")
    parser.add_argument("--updates", type=positive, default=20, help="updates in a timed stretch (20)")
    parser.add_argument("--repeats", type=positive, default=5, help="stretches or rounds, whose median counts (5)")
    parser.add_argument("--run", type=Path, help="measure decoding of this run on its test split")
    parser.add_argument(
        "--decode-in", action="append", type=Precision, choices=PRECISIONS,
        help="precision of decoding, repeatable (fp32, bf16 and, on a CPU, int8)")
    parser.add_argument(
        "--beside", action="append", choices=sorted(EXPORTS["cpu"]), default=[],
        help="another program to decode with the run's weights, repeatable")
    parser.add_argument("--workers", type=positive, default=1, help="processes or threads that decode a file (1)")
    parser.add_argument("--sentences", type=positive, default=200, help="test sentences to decode (200)")
    parser.add_argument("--trace", type=Path, help="write a profile for chrome://tracing here")
    parser.add_argument("--output", type=Path, default=Path("benchmark.json"), help="the report's file (benchmark.json)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to measure in turn")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds with --against (3)")
    options = parser.parse_intermixed_args()
    for name in OF_TRAINING if options.run else OF_DECODING:
        if getattr(options, name) != parser.get_default(name):
            needed = "Remove it or --run" if options.run else "Give --run=RUN"
            raise UserError(f"--{name.replace('_', '-')}: has no effect on what is measured. {needed}.")
    if options.output.is_dir():
        raise UserError(f"--output: {options.output} is a folder. Name a file.")
    for target in filter(None, (options.output, options.trace)):
        require_not_of_a_run(target)
        require_writable(target.parent)
    report = compare(options) if options.against else measure(options)
    text = json.dumps(report, indent=2)
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
        log(f"training {options.repeats} x {options.updates} updates")
        return report | {"training": measure_training(
            config, updates=options.updates, repeats=options.repeats, trace=options.trace)}
    for override in options.overrides:
        if override.split("=")[0].split(".")[0] not in {"device", "search"}:
            raise UserError(f"{override}: is an option of training. With --run give only device= and search.")
    device = report["machine"]["device"]
    precisions = options.decode_in or [name for name in PRECISIONS if name is not Precision.INT8 or device == "cpu"]
    figures = measure_decoding(
        options.run, config.search, device=device, precisions=precisions, programs=sorted(set(options.beside)),
        sentences=options.sentences, repeats=options.repeats, workers=options.workers)
    return report | {"workers": options.workers, "search": dataclasses.asdict(config.search), "decoding": figures}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure this checkout and another in turn, each by its own script; the medians of both and their ratio by figure."""
    checkouts = {"this": HERE, "against": options.against.resolve()}
    scripts = {name: script_of(checkout) for name, checkout in checkouts.items()}
    arguments = list(options.overrides)
    for name in ("updates", "repeats", "run", "decode_in", "beside", "workers", "sentences", "output"):
        value = getattr(options, name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        arguments += [f"--{name.replace('_', '-')}={value}" for value in values]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number, name in itertools.product(range(1, options.rounds + 1), checkouts):
        log(f"round {number}: {checkouts[name]}")
        rounds[name].append(dict(flat(measured_by(scripts[name], checkouts[name], arguments))))
    medians = {
        figure: {name: statistics.median(measured[figure] for measured in rounds[name]) for name in checkouts}
        for figure in rounds["this"][0] if figure in rounds["against"][0]}
    for figure, of in medians.items():
        ratio = f" {of['this'] / of['against']:>8.3f} x" if of["against"] else ""
        log(f"{figure:<56} {of['against']:>12,.2f} {of['this']:>12,.2f}{ratio}")
    return {"rounds": rounds, "medians": medians}


def script_of(checkout: Path) -> Path:
    """Return the measuring script of a checkout; UserError where there is none."""
    for name in SCRIPTS:
        if (checkout / name).is_file():
            return checkout / name
    raise UserError(f"--against: {checkout} is no checkout of this repository. Make one with git worktree add.")


def measured_by(script: Path, checkout: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a script on the code of its checkout, and return the figures of its report."""
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
