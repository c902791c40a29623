"""Which runs can be exported, and by which module."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType

from translator.config.options import ModelConfig
from translator.inference.translator import Translator
from translator.runtime.errors import UserError

# Options of a model that every exporter carries, whatever their values; of any other, an exporter lists the values it knows.
CARRIED = frozenset((
    "d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers", "max_positions", "output_bias", "embeddings", "dropout",
    "attention_dropout", "activation_dropout"))


def module_of(form: str) -> ModuleType:
    """Return the module that writes this format. Raises UserError if its library is not installed."""
    try:
        return importlib.import_module(f"translator.export.{form}")
    except ModuleNotFoundError as error:
        raise UserError(f"format={form}: {error.name} is not installed. "
                        f"Install it with `make export FORMAT={form}`, or pip install '.[{form}]'.") from error


def exportable(run: Path) -> Translator:
    """Load a run for export. Raises UserError if no format can express it."""
    translator = Translator(run, device="cpu")
    if translator.source_tokenizer.tag_ids or translator.target_tokenizer.tag_ids:
        raise UserError(f"{run}: tokenizer.source_tag and tokenizer.target_tag, as of M2M-100, cannot be exported")
    return translator


def require_supported(config: ModelConfig, program: str, supported: Mapping[str, Collection[object]]) -> None:
    """Raise UserError for an option that the exporter to `program` does not know, or of a value it does not know.

    `supported`: known values by option. Options that are neither there nor in CARRIED must have their default.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        known = supported.get(field.name, (field.default,))
        values = value if isinstance(value, tuple) else (value,)  # windows may be given layer by layer
        if field.name not in CARRIED and not all(each in known for each in values):
            names = ", ".join("null" if each is None else str(each) for each in known)
            raise UserError(f"model.{field.name}={value}: {program} cannot run such a model. Train one with {names}.")
