"""Fetch Tatoeba's everyday sentences and build data/tatoeba, the default data."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

from pathlib import Path

from translator.data.tatoeba import FOLDER, prepare_tatoeba


def main() -> None:
    prepare_tatoeba(Path(FOLDER))


if __name__ == "__main__":
    with one_line_errors():
        main()
