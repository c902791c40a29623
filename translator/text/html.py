"""HTML as the texts to translate in it, and everything between them, which stays byte for byte."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Literal

from translator.text.markup import VOID, Markup, Tag, paired

# Elements that begin a text of their own; all others are parts of a sentence. <br> ends a line, and so a text.
BLOCKS = frozenset((
    "address", "article", "aside", "audio", "blockquote", "body", "br", "button", "canvas", "caption", "center", "col",
    "colgroup", "datalist", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr", "html",
    "iframe", "legend", "li", "link", "listing", "main", "map", "menu", "meta", "nav", "noembed", "noframes", "noscript",
    "object", "ol", "optgroup", "option", "p", "plaintext", "pre", "script", "search", "section", "select", "style",
    "summary", "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video", "xmp"))
# Elements whose content is not translated.
KEPT = frozenset((
    "code", "iframe", "kbd", "listing", "math", "noembed", "noframes", "object", "plaintext", "pre", "samp", "script",
    "style", "svg", "template", "textarea", "tt", "xmp"))
# An element that holds no more than an address, a name or a tag is kept too, as <a href="...">@<span>tom</span></a>. So is a
# footnote's number: <sup>1</sup>.
ADDRESS = re.compile(r"(?:[@#]|\w+://|www\.|mailto:|[\w.+-]+@\w)\S+")
LARGEST_ADDRESS = 20  # tags and texts within such an element
UNCLOSED = re.compile(r"<[A-Za-z/!?]")  # in text: a tag that the end of the document cut off
SPACES = str.maketrans(dict.fromkeys("\t\n\f\r", " "))
SPELLINGS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|\w+);")
STANDING = [chr(code) for code in range(0xF0000, 0xF1000)]  # characters without a meaning, to stand for objects


@dataclass(frozen=True)
class Document:
    """The parts of a document in their order: texts to translate, and what stays."""

    parts: tuple[str | Markup, ...]

    @property
    def texts(self) -> list[Markup]:
        return [part for part in self.parts if isinstance(part, Markup)]

    @property
    def plain(self) -> str:
        """The texts without tags, one a line."""
        return "\n".join(markup.plain for markup in self.texts)

    def join(self, translations: Sequence[str]) -> str:
        """Return the document with a translation, in HTML, in the place of each text."""
        found = iter(translations)
        return "".join(part if isinstance(part, str) else next(found) for part in self.parts)


def parse_html(html: str) -> Document:
    """Find the texts of a document or fragment. Any string is HTML."""
    events, builder, number = _events(html), _Builder(html), 0
    ends = {first: last + 1 for first, last in paired(events)}
    while number < len(events):
        end = _kept_end(events, number, ends)
        if end is None:
            builder.add(events[number])
        else:
            builder.add_kept(events[number:end])
        number = end or number + 1
    builder.end_text()
    return Document(tuple(builder.parts))


@dataclass(frozen=True)
class _Event:
    """A piece of a document: joined, their sources are the document."""

    kind: Literal["text", "open", "close", "point"]
    source: str
    name: str = ""
    kept: bool = False  # by its name, or by translate="no" or class="notranslate"


class _Reader(HTMLParser):
    """Note where each piece of a document begins."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[tuple[int, int], _Event]] = []  # by line from 1 and column, without sources

    def _note(self, kind: Literal["text", "open", "close", "point"], name: str = "", kept: bool = False) -> None:
        self.found.append((self.getpos(), _Event(kind, "", name, kept)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        kept = tag in KEPT or values.get("translate", "").lower() == "no" or "notranslate" in values.get("class", "").split()
        self._note("point" if tag in VOID else "open", tag, kept and tag not in VOID)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note("point", tag)

    def handle_endtag(self, tag: str) -> None:
        self._note("close", tag)

    def handle_data(self, data: str) -> None:
        self._note("text")

    def handle_entityref(self, name: str) -> None:
        self._note("text")

    def handle_charref(self, name: str) -> None:
        self._note("text")

    def handle_comment(self, data: str) -> None:
        self._note("point")

    def handle_decl(self, decl: str) -> None:
        self._note("point")

    def handle_pi(self, data: str) -> None:
        self._note("point")

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Take `<![` for a comment to the next `>`, as HTML has it, where the base class expects SGML."""
        return super().parse_marked_section(i, report) if self.rawdata.startswith("<![CDATA[", i) else (
            self.parse_bogus_comment(i, report))

    def unknown_decl(self, data: str) -> None:
        self._note("point")


def _events(html: str) -> list[_Event]:
    """Return the pieces of a document. They are cut from it by their places, so none of its characters is lost."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = [0]
    for line in html.split("\n"):
        lines.append(lines[-1] + len(line) + 1)
    places = [*(lines[line - 1] + column for (line, column), _ in reader.found), len(html)]
    events = [_Event("point", html[: places[0]])]
    for (start, end), (_, event) in zip(pairwise(places), reader.found, strict=True):
        if event.kind == events[-1].kind == "text":
            events[-1] = dataclasses.replace(events[-1], source=events[-1].source + html[start:end])
        else:
            events.append(dataclasses.replace(event, source=html[start:end]))
    last = events[-1]
    if last.kind == "text" and (cut := UNCLOSED.search(last.source)):
        place = cut.start()
        events[-1:] = [_Event("text", last.source[:place]), _Event("point", last.source[place:])]
    return [event for event in events if event.source]


def _kept_end(events: Sequence[_Event], number: int, ends: Mapping[int, int]) -> int | None:
    """Return the number after an element that is not translated; None if this event begins none.

    ends: the number after each element that is closed, by that of its first tag.
    """
    event, end = events[number], ends.get(number)
    if event.kind == "open" and event.kept:
        # Never closed: it ends at the next block or, if it is one, at the next of its name.
        ending = {event.name} if event.name in BLOCKS else BLOCKS
        return end or next((i for i in range(number + 1, len(events)) if events[i].name in ending), len(events))
    if event.name in BLOCKS or end is None or end - number > LARGEST_ADDRESS:
        return None
    text = _text_of(events[number:end])
    footnote = event.name == "sup" and not any(map(str.isalpha, text))
    return end if footnote or ADDRESS.fullmatch(text) else None


def _text_of(events: Sequence[_Event]) -> str:
    return unescape("".join(event.source for event in events if event.kind == "text")).strip()


class _Builder:
    """Collect the parts of a document."""

    def __init__(self, html: str) -> None:
        self.parts: list[str | Markup] = []
        self._free = STANDING
        if not set(html).isdisjoint(STANDING):
            self._free = [character for character in STANDING if character not in html]
        self._begin()

    def _begin(self) -> None:
        self._source = self._text = ""
        self._spelled = ""  # what of the source is text
        self._tags: list[Tag] = []
        self._objects: dict[str, str] = {}

    def add(self, event: _Event) -> None:
        """Add a tag or a text."""
        if event.name in BLOCKS:
            self.end_text()
            self.parts.append(event.source)
            return
        self._source += event.source
        if event.kind == "text":
            self._text += unescape(event.source)
            self._spelled += event.source
        else:
            self._tags.append(Tag(len(self._text), event.source, event.kind, event.name))

    def add_kept(self, events: Sequence[_Event]) -> None:
        """Add an element that is not translated: a block, or a part of the sentence with a character that stands for it."""
        source, name = "".join(event.source for event in events), events[0].name
        if name in BLOCKS or len(self._objects) == len(self._free) or not _text_of(events):
            self.add(_Event("point", source, name))
            return
        character = self._free[len(self._objects)]
        self._source += source
        self._text += character
        self._objects[character] = source

    def end_text(self) -> None:
        """End the text that is being read. One without a letter is kept."""
        if any(map(str.isalpha, self._text)):
            markup = Markup(self._text, tuple(self._tags), self._objects, _spellings(self._spelled))
            before, between, after = markup.edges()
            self.parts += [before, dataclasses.replace(between, text=between.text.translate(SPACES)), after]
        else:
            self.parts.append(self._source)
        self._begin()


def _spellings(source: str) -> dict[str, str]:
    """Return how to write characters in HTML: as the source does, if it always does, and & < > in any case."""
    found = {unescape(match[0]): match[0] for match in ENTITY.finditer(source)}
    plain = set(ENTITY.sub("", source)) - set(SPELLINGS)
    return SPELLINGS | {text: entity for text, entity in found.items() if len(text) == 1 and text not in plain}
