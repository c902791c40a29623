"""Files as texts to translate: `FORMATS` has a parser for each suffix. `contents` is what a parser returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from translator.serve.documents.contents import Contents
from translator.serve.documents.gettext import parse_po
from translator.serve.documents.plain import parse_html_file, parse_text
from translator.serve.documents.subtitles import parse_srt
from translator.serve.documents.word import parse_docx
from translator.serve.service import Unanswerable

FORMATS: dict[str, Callable[[bytes, int], Contents]] = {
    ".txt": parse_text, ".srt": parse_srt, ".html": parse_html_file, ".htm": parse_html_file, ".po": parse_po,
    ".docx": parse_docx}


def parse_file(name: str, content: bytes, most: int) -> Contents:
    """Parse a file of at most `most` characters. Raises Unanswerable for another format, or if it is larger."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in FORMATS:
        raise Unanswerable(f"Invalid request: file format not supported. Send one of {', '.join(FORMATS)}")
    try:
        return FORMATS[suffix](content, most)
    except ValueError as error:
        raise Unanswerable(f"Invalid request: {name}: {error}") from error
