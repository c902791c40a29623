"""Write a run for this program on other machines: the files that translating takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from translator.config.options import SearchConfig
from translator.runs.run_folder import RunFolder

LIBRARY = "translator"
USAGE = """\
from translator import Translator

translator = Translator({name!r})
print(translator(["Where is the train station?", "I like tea."]))
"""


def write(run: RunFolder, search: SearchConfig, folder: Path) -> None:
    """Write a run folder whose default search is this one; int8 weights stay int8."""
    run.copy_to(folder, dataclasses.replace(run.load_config(), search=search))


def usage(name: str) -> str:
    """Return Python code that translates with the export of this name, a folder or a hub id."""
    return USAGE.format(name=name)
