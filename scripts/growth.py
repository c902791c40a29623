"""Measure how cost grows: `python scripts/growth.py length vocabulary model=small`. Overrides are scripts/train.py's.

Tables in Markdown on stdout, of fresh models, without init. Where none is named it makes all; the corpora take by far
the longest.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
from pathlib import Path

from hydra import compose, initialize_config_dir

from translator.bench import corpus_growth, growth
from translator.bench.benchmark import describe_machine, require_fresh
from translator.config.building import from_hydra
from translator.config.options import RunConfig
from translator.data.tatoeba import fetch_default
from translator.runtime.console import log, require_stdout
from translator.runtime.device import Precision, resolve_device
from translator.runtime.errors import UserError

CONF = Path(__file__).resolve().parent.parent / "conf"
TABLES = growth.TABLES | corpus_growth.TABLES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help=f"tables ({', '.join(TABLES)}), and options of training")
    words = parser.parse_args().words
    require_stdout("the tables", "Redirect it to a file: > FILE.")
    overrides = [word for word in words if word not in TABLES]
    for word in overrides:
        if "=" not in word:
            raise UserError(f"{word}: no such table; there are {', '.join(TABLES)}")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = from_hydra(RunConfig, compose("train", [*overrides, "name=growth"]))
    require_fresh(config)
    device = resolve_device(config.device)
    machine = describe_machine(device, Precision.resolve(config.precision, device))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    tables = [word for word in words if word in TABLES] or list(TABLES)
    if set(tables) & set(corpus_growth.TABLES):
        fetch_default(config.data.path)
    for name in tables:
        log(f"measuring how cost grows with {name}")
        for number, row in enumerate(TABLES[name](config)):
            if number == 0:
                print(f"\n## {name.capitalize()}\n")
            print(f"| {' | '.join(row)} |", flush=True)
            if number == 0:
                print(f"| {' | '.join(['---'] * len(row))} |")


if __name__ == "__main__":
    with one_line_errors():
        main()
