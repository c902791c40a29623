"""Fail on phrases that make this project's English hard to read: `make lint` runs it over docs, conf and docstrings."""

from __future__ import annotations

import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What to write instead is in CONTRIBUTING.md.
PHRASES = (
    "of which", "so many", "those that", "those of", "is told", "are told", "tells", "lies? in", "stands? in", "stands there",
    "but for", r"alone(?=[.;:])", "whatever", "by itself", "in turn", "in words", "gone on with", "go(?:es)? on", "comes to",
    "is had", "at hand", "to be had", "anew", "mend", "of another", "(?-i:is none)", "none is left", "take it out",
    r"as (?:it is|they are)(?=[.,;:)])")
WRONG = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)


def prose() -> Iterator[tuple[Path, int, str]]:
    """Yield the text of docs, comments and docstrings, with its file and first line."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("conf/**/*.yaml"), ROOT / "Makefile"]:
        yield path, 1, path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("translator/**/*.py"), *ROOT.glob("scripts/**/*.py")]:
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and path != Path(__file__)):
                    yield path, token.start[0], token.string


def main() -> int:
    """Print each wrong phrase with its place, and return the exit code."""
    found = [
        f"{path.relative_to(ROOT)}:{first + text.count(chr(10), 0, match.start())}: {match[0]!r}"
        for path, first, text in prose() for match in WRONG.finditer(text)]
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
