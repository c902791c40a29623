"""Word documents (.docx), one text for each paragraph. Its formatting travels as HTML tags, which translation sets again.

Office Open XML, ISO/IEC 29500-1, section 17.3: a paragraph (w:p) holds runs (w:r) of equal formatting (w:rPr).
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import groupby
from operator import itemgetter
from typing import Any

from lxml import etree

from translator.serve.documents.contents import Contents, require_size
from translator.text.html import Document, parse_html

MOST_BYTES = 1 << 25  # of the archive, unpacked
MOST_PIECES = 2_000  # of a paragraph
MOST_FORMATTING = 10_000  # characters of tags and attributes in a w:rPr, which each piece of it gets a copy of
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
    parts = _unpack(content)
    roots = {part: root for part, data in parts.items() if (root := _root(part.filename, data)) is not None}
    if not roots:
        raise ValueError("not a Word document")
    require_size(sum(len(text.text or "") for root in roots.values() for text in root.iter(f"{W}t")), most)
    require_size(sum(1 + len(element) for root in roots.values() for element in root.iter(f"{W}p", f"{W}r")), most)
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


def _unpack(content: bytes) -> dict[zipfile.ZipInfo, bytes]:
    """Return the parts of an archive. Raises ValueError if they are too large, or not an archive."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        size = sum(part.file_size for part in archive.infolist())
        parts = {part: archive.read(part) for part in archive.infolist()} if size <= MOST_BYTES else {}
    except Exception as error:  # of many kinds, from zipfile and each of its ways to unpack
        raise ValueError(f"not a Word document: {error}") from error
    if size > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes when unpacked")
    return parts


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
class _Format:
    """What the pieces of a run have in common: its w:rPr, and the hyperlink around it. Formats that look the same are equal."""

    properties: Element | None = field(compare=False)
    link: Element | None = field(compare=False)
    key: tuple[int, str]

    @classmethod
    def of(cls, run: Element, link: Element | None) -> _Format:
        """Read the format of a run. Raises ValueError for one that no word processor writes."""
        properties = run.find(f"{W}rPr")
        children = [] if properties is None else list(properties)
        described = [repr([_described(node) for node in child.iter()]) for child in children]
        if sum(map(len, described)) > MOST_FORMATTING:
            raise ValueError("a text has too much formatting")
        seen = (text for child, text in zip(children, described, strict=True) if child.tag not in UNSEEN)
        return cls(properties, link, (id(link), "".join(seen)))

    def run(self, pieces: Iterable[Element]) -> Element:
        """Return a run of this format, within its hyperlink."""
        run = _around(f"{W}r", {}, *([] if self.properties is None else [_copy(self.properties)]), *pieces)
        return _linked(run, self.link)


@dataclass(frozen=True)
class _Piece:
    """A child of a run, which has a format; or another child of the paragraph, or of a hyperlink."""

    element: Element
    format: _Format | None
    link: Element | None

    @property
    def text(self) -> str | None:
        """Its text, if it is text."""
        if self.element.tag == f"{W}t":
            text = self.element.text or ""
            return text if self.element.get(SPACE) == "preserve" else text.strip(" \t\r\n")
        return CHARACTERS.get(self.element.tag)


class _Paragraph:
    """A paragraph as HTML, and back."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self._formats: list[_Format] = []
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
        elements = [
            element for form, pieces in groupby(self._read(html), key=itemgetter(0)) for element in _written(form, pieces)]
        for child in list(self._element):
            if child.tag != f"{W}pPr":
                self._element.remove(child)
        self._element.extend(elements)

    def _read(self, html: str) -> Iterator[tuple[_Format | None, Element]]:
        """Yield the paragraph's new pieces, with its format if it belongs in a run."""
        number, place = self._usual, 0
        for tag in [*TAG.finditer(html), None]:
            if text := NOT_XML.sub("", unescape(html[place : tag.start() if tag else len(html)])):
                yield self._formats[number], _text(text)
            if tag is None:
                return
            place = tag.end()
            if tag[2] == "r":
                number = self._usual if tag[1] else int(tag[3])
            else:
                yield from (
                    (piece.format, piece.element if piece.format else _linked(piece.element, piece.link))
                    for piece in self._kept[int(tag[3])])

    def _html(self) -> str:
        pieces = list(_pieces(self._element))
        if len(pieces) > MOST_PIECES:
            raise ValueError(f"a paragraph has more than {MOST_PIECES:,} parts")
        texts: list[tuple[int, str]] = []  # with the number of the formatting, -1 for a tag
        numbers: dict[_Format, int] = {}
        for group in _without_fields(pieces):
            piece, form = group[0], group[0].format
            text = piece.text if len(group) == 1 else None
            if text is None or form is None:
                name = "br" if piece.element.tag in BREAKS else "x"
                texts.append((-1, f'<{name} id="{len(self._kept)}"/>'))
                self._kept.append(group)
            else:
                number = numbers.setdefault(form, len(numbers))
                self._formats += [form] * (number == len(self._formats))
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
                form = _Format.of(run, link)
                yield from (_Piece(part, form, link) for part in run if part.tag not in IGNORED)
            elif run.tag not in IGNORED:
                yield _Piece(run, None, link)


def _without_fields(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
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


def _written(form: _Format | None, pieces: Iterable[tuple[_Format | None, Element]]) -> list[Element]:
    """Return consecutive pieces as children of the paragraph: as one run if they have a format."""
    elements = [element for _, element in pieces]
    return elements if form is None else [form.run(elements)]


def _described(node: Element) -> tuple[object, ...]:
    """Return what distinguishes an element; with those below it, in the order of the document, its whole tree."""
    return node.tag, sorted(node.attrib.items()), len(node)


def _copy(element: Element) -> Element:
    """Copy what `_described` describes, so that its size is known."""
    return _around(element.tag, element.attrib, *map(_copy, element))


def _linked(element: Element, link: Element | None) -> Element:
    return element if link is None else _around(link.tag, link.attrib, element)


def _around(tag: str, attributes: Mapping[str, str], *children: Element) -> Element:
    element = etree.Element(tag, attributes)
    element.extend(children)
    return element


def _text(text: str) -> Element:
    element = etree.Element(f"{W}t", {SPACE: "preserve"})
    element.text = text
    return element
