"""Output for the person watching: log lines and a progress bar, on stderr."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time

from tqdm import tqdm

from translator.runtime.distributed import is_main_process
from translator.runtime.errors import UserError


def log(text: str) -> None:
    """Print a line on stderr, above the progress bar; of several processes only the main one does."""
    if is_main_process():
        tqdm.write(_wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr)


def _wrapped(text: str) -> str:
    """Return text with the lines that are wider than the terminal wrapped between words, under what follows their label."""
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    lines = []
    for line in text.split("\n"):
        label = re.match(r"\w+ {2,}", line)
        wrapper.subsequent_indent = " " * (label.end() if label else 2)
        lines += wrapper.wrap(line) or [""]
    return "\n".join(lines)


def require_stdout(what: str, instead: str) -> None:
    """Raise UserError where stdout was closed, as by `>&-`, before work whose only result goes there."""
    if getattr(sys.stdout, "name", None) == os.devnull:  # as translator/runtime/script.py opens it
        raise UserError(f"stdout: is closed, and {what} would be lost. {instead}")


class Progress:
    """A progress bar with the time left on a terminal; elsewhere a line every half minute."""

    def __init__(self, *, done: float) -> None:
        """`done`: the fraction done before, 0 to 1."""
        self._bar = tqdm(
            total=1.0, initial=done, file=sys.stderr, disable=not (is_main_process() and sys.stderr.isatty()), smoothing=0.1,
            bar_format="{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}", leave=False, dynamic_ncols=True)
        self._last_line = time.monotonic()

    def advance(self, done: float, *figures: str) -> None:
        """Show the fraction done, with figures such as `loss 3.21`."""
        text = "  ".join(figures)
        self._bar.n = done
        self._bar.set_postfix_str(text)
        if self._bar.disable and time.monotonic() - self._last_line >= 30:
            self._last_line = time.monotonic()
            log(f"{100 * done:3.0f} %  {text}")

    def close(self) -> None:
        self._bar.close()
