"""Text with inline tags: the text to translate, and the tags by their places in it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

# <b>, </a>, <br/>, <x id="1">. Attributes must have values: "a <b and c> d" holds no tag.
TAG = re.compile(
    r"""<(?P<close>/)?(?P<name>[A-Za-z][\w.-]*+(?::[\w.-]++)?)(?:\s++[\w:.-]++\s*+=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=/]++))*+"""
    r"\s*+(?P<alone>/)?>")
VOID = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"))


@dataclass(frozen=True)
class Tag:
    """A tag as it is written. A point has no content that is translated: <br>, or an element that is kept as one."""

    place: int  # characters of the text before it
    source: str
    kind: Literal["open", "close", "point"]
    name: str = ""
    spaced: bool = False  # of an object that was removed: a space came before it


@dataclass(frozen=True)
class Markup:
    """A text, the tags within it, and the characters that stand for objects such as <code>...</code>."""

    text: str
    tags: tuple[Tag, ...] = ()
    objects: Mapping[str, str] = field(default_factory=dict)  # the source of each, by the character that stands for it
    spellings: Mapping[str, str] = field(default_factory=dict)  # of characters in HTML, such as &amp;

    @property
    def source(self) -> str:
        """The text with its tags."""
        places = [0, *(tag.place for tag in self.tags), len(self.text)]
        texts = [self.encode(self.text[start:end]) for start, end in zip(places, places[1:], strict=False)]
        return texts[0] + "".join(tag.source + text for tag, text in zip(self.tags, texts[1:], strict=True))

    @property
    def plain(self) -> str:
        """The text, without what stands for objects."""
        return self.without_objects().text

    def encode(self, text: str) -> str:
        """Return a part of the text, or of its translation, as it is written beside tags."""
        return "".join(self.objects.get(character) or self.spellings.get(character, character) for character in text)

    def partners(self) -> list[int | None]:
        """Return for each tag the number of the one it is paired with. Tags that would cross others have none."""
        partners: list[int | None] = [None] * len(self.tags)
        for first, last in paired(self.tags):
            partners[first], partners[last] = last, first
        return partners

    def split(self, parts: Sequence[str]) -> list[Markup]:
        """Return the markup of consecutive parts of the text; an element may begin in one and end in another."""
        markups, start, rest = [], 0, list(self.tags)
        for number, part in enumerate(parts, 1):
            end, last = start + len(part), number == len(parts)
            here = (last or tag.place < end or (tag.place == end and tag.kind == "close") for tag in rest)
            count = next((i for i, inside in enumerate(here) if not inside), len(rest))
            tags = tuple(dataclasses.replace(tag, place=min(tag.place - start, len(part))) for tag in rest[:count])
            markups.append(dataclasses.replace(self, text=part, tags=tags))
            rest, start = rest[count:], end
        return markups

    def spread(self, spans: Sequence[str]) -> list[str]:
        """Return the spans that a text is cut into with the tags, each in the span after it: joined, they are the source."""
        return [part.source for part in self.split(spans)]

    def without_start(self, length: int) -> Markup:
        """Return the markup without this many characters, but with all tags."""
        tags = tuple(dataclasses.replace(tag, place=max(0, tag.place - length)) for tag in self.tags)
        return dataclasses.replace(self, text=self.text[length:], tags=tags)

    def without_objects(self, kept: Collection[str] = ()) -> Markup:
        """Return the markup with a point in the place of each object that is not `kept`."""
        text, tags, rest = "", [], list(self.tags)
        for place, character in enumerate(self.text):
            while rest and rest[0].place <= place:
                tags.append(dataclasses.replace(rest.pop(0), place=len(text)))
            if character in self.objects and character not in kept:
                beside_tag = bool(tags) and tags[-1].place == len(text)
                spaced = text[-1:] == " " and place + 1 < len(self.text) and not beside_tag
                text = text[:-1] if spaced else text
                tags.append(Tag(len(text), self.objects[character], "point", spaced=spaced))
            else:
                text += character
        tags += [dataclasses.replace(tag, place=len(text)) for tag in rest]
        return Markup(text, tuple(tags), {character: self.objects[character] for character in kept}, self.spellings)

    def edges(self) -> tuple[str, Markup, str]:
        """Return what comes before the first and after the last word, as written, and the markup between.

        Elements around the whole text belong to its edges; one that ends or begins within the text does not.
        """
        partners, count = self.partners(), len(self.tags)
        leading = len(self.text) - len(self.text.lstrip())
        trailing = max(leading, len(self.text.rstrip()))
        first = sum(tag.place <= leading for tag in self.tags)
        last = max(first, count - sum(tag.place >= trailing for tag in self.tags))
        while True:
            inner_first = next((i for i in range(first) if (p := partners[i]) is not None and first <= p < last), first)
            inner_last = next(
                (i + 1 for i in reversed(range(last, count)) if (p := partners[i]) is not None and inner_first <= p < last),
                last)
            if (inner_first, inner_last) == (first, last):
                break
            first, last = inner_first, inner_last
        inner = self.tags[first:last]
        start = min([leading, *(tag.place for tag in inner)])
        end = max([trailing, *(tag.place for tag in inner)])
        before, between, after = (
            dataclasses.replace(self, text=self.text[a:b], tags=tuple(
                dataclasses.replace(tag, place=min(max(tag.place, a), b) - a) for tag in tags))
            for a, b, tags in ((0, start, self.tags[:first]), (start, end, inner), (end, len(self.text), self.tags[last:])))
        return before.source, between, after.source


class Named(Protocol):
    """A tag by its kind and name."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...


def paired(tags: Sequence[Named]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the first and last tag of each element. Tags that would cross others belong to none."""
    waiting: list[int] = []
    names: Counter[str] = Counter()
    for number, tag in enumerate(tags):
        if tag.kind == "open":
            waiting.append(number)
            names[tag.name] += 1
        elif tag.kind == "close" and names[tag.name]:
            opened = -1
            while opened < 0 or tags[opened].name != tag.name:
                opened = waiting.pop()
                names[tags[opened].name] -= 1
            yield opened, number


def strip_tags(text: str) -> Markup | None:
    """Return a plain text without its tags, and these; None for a text that has none."""
    tags: list[Tag] = []
    plain, last = "", 0
    for match in TAG.finditer(text):
        plain += text[last : match.start()]
        last = match.end()
        name = match["name"].lower()
        alone = match["alone"] or (not match["close"] and name in VOID)
        tags.append(Tag(len(plain), match[0], "point" if alone else "close" if match["close"] else "open", name))
    return Markup(plain + text[last:], tuple(tags)) if tags else None
