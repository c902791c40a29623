"""Plain text and HTML."""

from __future__ import annotations

from translator.serve.documents.contents import Contents, decode
from translator.text.html import parse_html


def parse_text(content: bytes) -> Contents:
    """Parse a text, whose lines are translated one by one."""
    text, mark = decode(content)
    return Contents([text], lambda translations: mark + translations[0].encode())


def parse_html_file(content: bytes) -> Contents:
    """Parse an HTML document."""
    html, mark = decode(content)
    return Contents([parse_html(html)], lambda translations: mark + translations[0].encode())
