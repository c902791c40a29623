"""A seq2seq translation trainer: an encoder-decoder Transformer on its own multi-head attention.

Begin with `model.attention`; docs/ says how to use it all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Translator", "__version__", "train"]
__version__ = "0.1.0"
_MODULES = {"Translator": "translator.inference.translator", "train": "translator.api"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: PyTorch takes seconds, in which a script could not be stopped cleanly."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
