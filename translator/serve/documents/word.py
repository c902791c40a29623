"""Word documents (.docx), one text for each paragraph. Its formatting travels as HTML tags, which translation sets again.

Office Open XML, ISO/IEC 29500-1, section 17.3: a paragraph (w:p) holds runs (w:r) of equal formatting (w:rPr).
"""

from __future__ import annotations

import copy
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from itertools import groupby
from operator import itemgetter
from typing import Any

from lxml import etree

from translator.serve.documents.contents import Contents, require_size
from translator.text.html import Document, parse_html

MOST_BYTES = 1 << 25  # of the archive, unpacked
MOST_PIECES = 2_000  # of a paragraph
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
SPACE = "{http://www.w3.org/XML/1998/namespace}space"
ROOTS = {f"{W}{name}" for name in ("document", "hdr", "ftr", "footnotes", "endnotes")}
CHARACTERS = {f"{W}noBreakHyphen": "\u2011", f"{W}softHyphen": "\u00ad"}
BREAKS = {f"{W}{name}" for name in ("br", "cr", "tab", "ptab")}
IGNORED = {f"{W}{name}" for name in ("pPr", "rPr", "proofErr", "lastRenderedPageBreak")}
UNSEEN = {f"{W}{name}" for name in ("lang", "noProof")}  # formatting that does not show
# How `_html` spells a paragraph: text of one formatting, what stays within a sentence, and what ends a text.
TAG = re.compile(r'<(/?)(r|x|br)(?: id="(\d+)")?/?>')
NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Element = Any  # lxml has no type hints


def parse_docx(content: bytes, most: int) -> Contents:
    """Parse a document: its paragraphs, also in tables, text boxes, headers, footers and notes.

    Text in fields, tracked changes and inline content controls stays. Raises ValueError for other files.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes when unpacked")
        parts = {part: archive.read(part) for part in archive.infolist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError) as error:  # or encrypted
        raise ValueError(f"not a Word document: {error}") from error
    roots = {part: root for part, data in parts.items() if (root := _root(part.filename, data)) is not None}
    if not roots:
        raise ValueError("not a Word document")
    require_size(sum(len(text.text or "") for root in roots.values() for text in root.iter(f"{W}t")), most)
    require_size(sum(1 for root in roots.values() for _ in root.iter(f"{W}p", f"{W}r")), most)
    paragraphs = [_Paragraph(element) for root in roots.values() for element in root.iter(f"{W}p")]

    def write(translations: Sequence[str]) -> bytes:
        for paragraph, translation in zip(paragraphs, translations, strict=True):
            paragraph.replace(translation)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for part, data in parts.items():
                root = roots.get(part)
                packed.writestr(part, data if root is None else etree.tostring(
                    root, xml_declaration=True, encoding="UTF-8", standalone=True))
        return file.getvalue()

    left = any(paragraph.has_other_text for paragraph in paragraphs)
    warning = "text in fields, tracked changes or content controls is not translated"
    return Contents([paragraph.document for paragraph in paragraphs], write, (warning,) if left else ())


def _root(name: str, data: bytes) -> Element | None:
    """Return the root of a part that holds paragraphs; None for other parts. Raises ValueError if it is not XML."""
    if not re.fullmatch(r"word/[^/]+\.xml", name):
        return None
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"{name}: not XML: {error}") from error
    if root.getroottree().docinfo.internalDTD is not None:  # forbidden (ISO/IEC 29500-2), so every node is an element
        raise ValueError(f"{name}: has a document type declaration")
    return root if root.tag in ROOTS else None


@dataclass(frozen=True)
class _Piece:
    """A child of a run, or of the paragraph, with the hyperlink around it."""

    element: Element
    run: Element | None = None
    link: Element | None = None

    @property
    def format(self) -> Element | None:
        return None if self.run is None else self.run.find(f"{W}rPr")

    @property
    def text(self) -> str | None:
        """Its text, if it is text."""
        if self.element.tag == f"{W}t":
            text = self.element.text or ""
            return text if self.element.get(SPACE) == "preserve" else text.strip(" \t\r\n")
        return CHARACTERS.get(self.element.tag)

    @property
    def format_key(self) -> tuple[int, bytes]:
        """What pieces of equal formatting have in common."""
        form = [] if self.format is None else self.format
        return id(self.link), b"".join(etree.tostring(child, method="c14n") for child in form if child.tag not in UNSEEN)

    def written(self, text: str | None = None) -> Element:
        """Return it, or a text of its formatting, within its run and hyperlink."""
        element = self.element if text is None else _text(text)
        if self.run is not None:
            element = _around(f"{W}r", {}, *([] if self.format is None else [copy.deepcopy(self.format)]), element)
        return element if self.link is None else _around(self.link.tag, self.link.attrib, element)


class _Paragraph:
    """A paragraph as HTML, and back."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self._formats: list[_Piece] = []  # the first piece of each formatting
        self._usual = 0  # number of the formatting of most characters, which has no tag
        self._kept: list[list[_Piece]] = []
        self.document: Document = parse_html(self._html())

    @property
    def has_other_text(self) -> bool:
        """Whether it holds text that is not translated."""
        return any(
            any(map(str.isalpha, text.text or "")) and next(text.iterancestors(f"{W}p")) is self._element
            for pieces in self._kept for piece in pieces for text in piece.element.iter(f"{W}t"))

    def replace(self, html: str) -> None:
        """Put a translation in the paragraph's place."""
        if not self.document.texts:
            return
        elements = list(self._read(html))
        for child in list(self._element):
            if child.tag != f"{W}pPr":
                self._element.remove(child)
        self._element.extend(elements)

    def _read(self, html: str) -> Iterator[Element]:
        """Yield the paragraph's new children."""
        number, place = self._usual, 0
        for tag in [*TAG.finditer(html), None]:
            if text := NOT_XML.sub("", unescape(html[place : tag.start() if tag else len(html)])):
                yield self._formats[number].written(text)
            if tag is None:
                return
            place = tag.end()
            if tag[2] == "r":
                number = self._usual if tag[1] else int(tag[3])
            else:
                yield from (piece.written() for piece in self._kept[int(tag[3])])

    def _html(self) -> str:
        if sum(1 for _ in self._element.iter(f"{W}r")) > MOST_PIECES:
            raise ValueError(f"a paragraph has more than {MOST_PIECES:,} parts")
        texts: list[tuple[int, str]] = []  # with the number of the formatting, -1 for a tag
        numbers: dict[tuple[int, bytes], int] = {}
        for group in _without_fields(_pieces(self._element)):
            text = group[0].text if len(group) == 1 else None
            if text is None:
                name = "br" if group[0].element.tag in BREAKS else "x"
                texts.append((-1, f'<{name} id="{len(self._kept)}"/>'))
                self._kept.append(group)
            else:
                number = numbers.setdefault(group[0].format_key, len(numbers))
                self._formats += group[: number == len(self._formats)]
                texts.append((number, escape(text, quote=False)))
        lengths = Counter[int]()
        for number, text in texts:
            lengths[number] += len(text) * (number >= 0)
        self._usual = max(range(len(self._formats)), key=lengths.__getitem__, default=0)
        return "".join(
            text if number in (-1, self._usual) else f'<r id="{number}">{text}</r>'
            for number, group in groupby(texts, key=itemgetter(0)) for text in ["".join(text for _, text in group)])


def _pieces(paragraph: Element) -> Iterator[_Piece]:
    """Yield the pieces of a paragraph in their order."""
    for child in paragraph:
        link = child if child.tag == f"{W}hyperlink" else None
        for run in [child] if link is None else child:
            if run.tag == f"{W}r":
                yield from (_Piece(part, run, link) for part in run if part.tag not in IGNORED)
            elif run.tag not in IGNORED:
                yield _Piece(run, None, link)


def _without_fields(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Yield the pieces one by one, but a field, from its begin to its end, as one group (section 17.16.18)."""
    field: list[_Piece] = []
    depth = 0
    for piece in pieces:
        mark = piece.element.get(f"{W}fldCharType") if piece.element.tag == f"{W}fldChar" else ""
        depth = max(0, depth + (mark == "begin") - (mark == "end"))
        field.append(piece)
        if not depth:
            yield field
            field = []
    if field:  # it ends in a later paragraph
        yield field


def _around(tag: str, attributes: Mapping[str, str], *children: Element) -> Element:
    element = etree.Element(tag, attributes)
    element.extend(children)
    return element


def _text(text: str) -> Element:
    element = etree.Element(f"{W}t", {SPACE: "preserve"})
    element.text = text
    return element
