"""Trained models written for other programs to run: a module for each (floor 6)."""

from __future__ import annotations

import importlib
from types import ModuleType

from translator.errors import UserError


def module_of(form: str) -> ModuleType:
    """What writes this format, and reads it by the program that it is for; UserError where that is not installed."""
    try:
        return importlib.import_module(f"translator.export.{form}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"format={form}: {error.name} is not installed; `make export FORMAT={form}` or pip install '.[{form}]' "
            "brings it") from error
