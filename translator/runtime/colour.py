"""Colour for a person at a terminal."""

from __future__ import annotations

import os
import sys

RED, GREEN = 31, 32  # ECMA-48, section 8.3.117


def coloured(text: str, colour: int) -> str:
    """Return text for stderr: in colour on a terminal, as it is in a file or a pipe, or where NO_COLOR is set."""
    plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{colour}m{text}\x1b[m"
