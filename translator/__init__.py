"""A seq2seq translation trainer: an encoder-decoder Transformer on its own multi-head attention.

Begin with `model.attention`; docs/ says how to use it all.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Translator", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `Translator` when it is first used: PyTorch takes seconds, in which a script could not be stopped cleanly."""
    if name != "Translator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from translator.inference.translator import Translator

    return Translator
