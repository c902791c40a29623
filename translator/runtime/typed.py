"""Commands as the user would type them, for messages that say what to do next."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

# Options with a variable of their own in the Makefile: of every command, and of one.
VARIABLES = {"run": "RUN", "text": "TEXT", "format": "FORMAT"}
OF_COMMAND = {"import": {"init": "FROM"}, "teach": {"data.teacher": "TEACHER", "name": "NAME"}}
CALLED_BY_MAKE = "TRANSLATE_ARGS" in os.environ  # read here: the first command takes it away
DISTRIBUTION = "seq2seq-translator"


def typed(command: str, **options: object) -> str:
    """Return a command with options, for make if make called this program; `...` is a value to fill in."""
    if CALLED_BY_MAKE:
        names = VARIABLES | OF_COMMAND.get(command, {})
        variables = [f"{names[name]}={_quote(value)}" for name, value in options.items() if name in names]
        others = " ".join(f"{name}={'...' if value is ... else value}" for name, value in options.items() if name not in names)
        return " ".join(["make", command, *variables, *([f'ARGS="{others}"'] if others else [])])
    script = Path(sys.argv[0])
    as_script = script.parent.name == "scripts" and script.suffix == ".py"
    program = ["python", str(script.with_stem(command.replace("-", "_")))] if as_script else ["translator", command]
    return " ".join([*program, *(f"{name}={_quote(value)}" for name, value in options.items())])


def installation(extra: str) -> str:
    """Return what to type to install an extra of pyproject.toml."""
    return f"make .venv/ready-{extra}" if CALLED_BY_MAKE else f"pip install '{DISTRIBUTION}[{extra}]'"


def _quote(value: object) -> str:
    return '"..."' if value is ... else shlex.quote(str(value))
