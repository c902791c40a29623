"""Plain text and HTML."""

from __future__ import annotations

from translator.serve.documents.contents import Contents, decode
from translator.text.html import parse_html


def parse_text(content: bytes, most: int) -> Contents:
    """Parse a text, whose lines are translated one by one."""
    text, mark = decode(content, most)
    return Contents([text], lambda translations: mark + translations[0].encode())


def parse_html_file(content: bytes, most: int) -> Contents:
    """Parse an HTML document."""
    html, mark = decode(content, most)
    return Contents([parse_html(html)], lambda translations: mark + translations[0].encode())
