"""Context across sentences: the lines before a line of a document, which its source begins with.

Tiedemann and Scherrer 2017, https://aclanthology.org/W17-4811, section 3: the larger context of the source.
"""

from __future__ import annotations

from collections import deque

from translator.config.languages import SEPARATOR


class Context:
    """The last `length` lines of a document. An empty line ends it."""

    def __init__(self, length: int) -> None:
        self._lines = deque[str](maxlen=length)

    def before(self, line: str) -> str:
        """Return the lines before this one, a separator after each, and remember this one.

        A line that has a context of its own gets no other.
        """
        if not line.strip():
            self._lines.clear()
            return ""
        _, separator, text = line.rpartition(SEPARATOR)
        context = "" if separator else "".join(f"{earlier} {SEPARATOR} " for earlier in self._lines)
        if text.strip():
            self._lines.append(text.strip() if separator else text)
        return context


def with_context(source: str, length: int) -> str:
    """Return a source with at most `length` lines of its context."""
    return f" {SEPARATOR} ".join(source.split(f" {SEPARATOR} ")[-1 - length :])
