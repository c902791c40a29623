"""Trained models written for other programs to run: a module for each."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from translator.inference.translator import Translator
from translator.runtime.errors import UserError


def module_of(form: str) -> ModuleType:
    """What writes this format, and reads it by the program that it is for; UserError where that is not installed."""
    try:
        return importlib.import_module(f"translator.export.{form}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"format={form}: {error.name} is not installed; `make export FORMAT={form}` or pip install '.[{form}]' "
            "brings it") from error


def exportable(run: Path) -> Translator:
    """A trained run as the modules take it; UserError for what none of them can express."""
    translator = Translator(run, device="cpu")
    if translator.source_tokenizer.tag_ids or translator.target_tokenizer.tag_ids:
        raise UserError(f"{run}: tokenizer.source_tag and tokenizer.target_tag, as of M2M-100, cannot be exported")
    return translator
