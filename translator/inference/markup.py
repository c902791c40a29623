"""Set the tags of a source again in its translation, by word alignment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from translator.inference.alignment import align_words
from translator.inference.planning import Unit
from translator.inference.projection import Atom, Range, WordAlignment, project
from translator.inference.translation import Translation
from translator.search.hypothesis import Ids
from translator.search.scoring import Rating
from translator.text.markup import Markup, Tag
from translator.text.tokenizer import EOS_ID, WORD_START, Tokenizer
from translator.text.writing_systems import is_unspaced

# Marks beside which no space is added.
OPENING, CLOSING = frozenset("([{«“„¿¡"), frozenset(".,;:!?)]}»”…、。，！？")
DEEPEST = 100  # nested elements; those within are set as single tags


@dataclass
class _Element:
    """An element of the source, or a point between words."""

    number: int  # of its first tag
    tags: tuple[str, str]
    start: int  # in characters of the source
    end: int
    point: Tag | None = None
    children: list[_Element] = field(default_factory=list)


@dataclass(frozen=True)
class _Item:
    """What goes into a translation at a place: a point, or an element with the characters it covers."""

    start: int
    end: int
    source: str
    neighbours: tuple[str, str] = ("", "")  # of a point: the characters of the source before and after it


def restore_tags(
    units: Sequence[Unit], translations: Sequence[Translation], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer,
    rate: Callable[[Sequence[tuple[Ids, Ids]]], Sequence[Rating]],
) -> list[Translation]:
    """Return translations with the tags of their sources. `rate` gives the evidence, where a tag is between words."""
    def pairs_of(unit: Unit, translation: Translation) -> list[tuple[Ids, Ids]]:
        between = unit.markup is not None and unit.markup.edges()[1].tags
        if not between or not translation.pairs:
            return []
        [(source, _)] = translation.pairs  # not always the unit's: placeholders may have failed
        return [(source, [*hypothesis.ids, EOS_ID]) for hypothesis in translation.hypotheses]

    pairs = list(map(pairs_of, units, translations))
    ratings = iter(rate([pair for of_unit in pairs for pair in of_unit]))
    result = []
    for unit, translation, of_unit in zip(units, translations, pairs, strict=True):
        if unit.markup is not None and not translation.refused:
            alignments = [_align(pair, next(ratings), source_tokenizer, target_tokenizer) for pair in of_unit]
            texts = tuple(
                set_tags(unit.markup, text, alignment or WordAlignment((), (), ())).strip()
                for text, alignment in zip_longest(translation.texts, alignments[: len(translation.texts)]))
            translation = dataclasses.replace(translation, texts=texts)
        result.append(translation)
    return result


def _align(pair: tuple[Ids, Ids], rating: Rating, *tokenizers: Tokenizer) -> WordAlignment:
    """Align the words of a source and an output; in scripts without spaces, their pieces."""
    tags = [tokenizer.count_tags(ids) for ids, tokenizer in zip(pair, tokenizers, strict=True)]
    source, target = (
        [WORD_START + piece if is_unspaced(piece) else piece for piece in tokenizer.pieces(ids[skipped:-1])]
        for ids, tokenizer, skipped in zip(pair, tokenizers, tags, strict=True))
    links = align_words(rating.alignment[tags[1] :, tags[0] :], source, target)
    return WordAlignment(_words(source), _words(target), links)


def _words(pieces: Sequence[str]) -> list[str]:
    return "".join(pieces).removeprefix(WORD_START).split(WORD_START)


def set_tags(markup: Markup, translation: str, alignment: WordAlignment) -> str:
    """Return a translation of the markup's text with its tags.

    An element covers the words that are aligned to its own. Each tag is set exactly once, and no two elements cross.
    """
    kept = [character for character in markup.objects if translation.count(character) == 1]
    if len(kept) < len(markup.objects):  # what stands for an object is lost or doubled
        translation = "".join(character for character in translation if character in kept or character not in markup.objects)
        markup = markup.without_objects(kept)
    before, inner, after = markup.edges()
    text = inner.text
    leading, trailing = len(text) - len(text.lstrip()), len(text.rstrip())
    target = text[:leading] + translation.strip() + text[max(leading, trailing) :]
    cuts = sorted({tag.place for tag in inner.tags})
    return before + _Setter(inner, target, project(text, target, alignment, cuts)).source() + after


class _Setter:
    """Build the translation with tags, element by element."""

    def __init__(self, markup: Markup, target: str, atoms: Sequence[Atom]) -> None:
        self.markup, self.target, self.atoms = markup, target, atoms

    def source(self) -> str:
        return self._content(self._tree(), (0, len(self.atoms)), (0, len(self.target)))

    def _tree(self) -> _Element:
        tags, partners = self.markup.tags, self.markup.partners()
        stack = [_Element(-1, ("", ""), 0, len(self.markup.text))]
        nested = {-1}
        for number, (tag, partner) in enumerate(zip(tags, partners, strict=True)):
            if partner is not None and partner < number and partner in nested:
                stack.pop()
                continue
            closed = partner is not None and partner > number and len(stack) <= DEEPEST
            last = tags[partner] if closed and partner is not None else None
            element = _Element(
                number, (tag.source, last.source if last else ""), tag.place, last.place if last else tag.place,
                None if last else tag)
            stack[-1].children.append(element)
            if last:
                stack.append(element)
                nested.add(number)
        return stack[0]

    def _content(self, element: _Element, atoms: Range, within: Range) -> str:
        """Return the characters `within` the translation that an element covers, with the tags in it."""
        content, place = "", within[0]
        for item in sorted(self._items(element, atoms, within), key=lambda item: (item.start, item.end)):  # stable
            content += self.markup.encode(self.target[place : item.start])
            if _apart(item.neighbours[0], content[-1:], OPENING):
                content += " "
            content += item.source
            place = item.end
            if _apart(item.neighbours[1], self.target[place : within[1]][:1], CLOSING):
                content += " "
        return content + self.markup.encode(self.target[place : within[1]])

    def _items(self, element: _Element, atoms: Range, within: Range) -> list[_Item]:
        """Return the children of an element in the order of the source, at their places in the translation."""
        wide = [child for child in element.children if child.start < child.end]
        owners = [_owner(wide, atom) for atom in self.atoms[slice(*atoms)]]
        covered = {}  # by child: its atoms
        for child in wide:
            if span := _best_span([1 if owner is child else None if owner else -1 for owner in owners]):
                covered[child.number] = atoms[0] + span[0], atoms[0] + span[1]
        for child in wide:
            if child.number not in covered and any(map(str.isalnum, self.markup.text[child.start : child.end])):
                self._cover_nearest(child, element, atoms, within, owners, covered)
        ranges = self._ranges(element.children, covered, within)
        taken, spots, items = list(ranges.values()), list[int](), list[_Item]()
        reached, spot, before = within[0], within, None
        for child in element.children:
            if child.number in covered:
                spot = ranges[child.number]
            else:
                start = self._spot(child, element, atoms, within, taken)
                if before and before.number not in covered:  # those with no word between them keep their order
                    between = self.markup.text[before.end : child.start]
                    start = start if any(map(str.isalnum, between)) else max(start, spot[1]) if between else spot[1]
                if child.point and child.point.kind != "point":  # its pair is elsewhere: such tags keep their order
                    start = reached = max(start, reached)
                spot = start, self._end_of_spaces(start, child, spots, taken, within[1])
                spots.append(start)
                taken += [spot] * (spot[0] < spot[1])
            source = child.tags[0] + self._content(child, covered.get(child.number, (0, 0)), spot) + child.tags[1]
            items.append(_Item(*spot, source, self._neighbours(child)))
            before = child
        return items

    def _cover_nearest(
        self, child: _Element, parent: _Element, atoms: Range, within: Range, owners: list[_Element | None],
        covered: dict[int, Range],
    ) -> None:
        """Cover the nearest word that no other element has, if there is one: an empty link could not be followed."""
        spot = self._spot(child, parent, atoms, within, ())
        others = {number for span in covered.values() for number in range(*span)}
        free = [
            (abs(atom.start - spot), number) for number, atom in enumerate(self.atoms[slice(*atoms)], atoms[0])
            if number not in others and owners[number - atoms[0]] is None
            and any(map(str.isalnum, self.target[atom.start : atom.end]))]
        if free:
            nearest = min(free)[1]
            owners[nearest - atoms[0]] = child
            covered[child.number] = nearest, nearest + 1

    def _ranges(self, children: Sequence[_Element], covered: Mapping[int, Range], within: Range) -> dict[int, Range]:
        """Return the characters of each child that covers words, with the spaces at its edges in the source."""
        source, target = self.markup.text, self.target
        ranges, last = {}, within[0]
        inside = [child for child in children if child.number in covered]
        for child in sorted(inside, key=lambda child: covered[child.number]):
            first, end = covered[child.number]
            content = source[child.start : child.end]
            start, stop = self.atoms[first].start, self.atoms[end - 1].end
            for _ in range(len(content) - len(content.lstrip())):
                start -= start > last and target[start - 1].isspace()
            for _ in range(len(content) - len(content.rstrip())):
                stop += stop < within[1] and target[stop].isspace()
            ranges[child.number] = start, stop
            last = stop
        return ranges

    def _spot(self, child: _Element, parent: _Element, atoms: Range, within: Range, taken: Sequence[Range]) -> int:
        """Return where to set a child without words: beside the word that it is beside in the source."""
        source, target = self.markup.text, self.target
        spaces_before = len(source[parent.start : child.start]) - len(source[parent.start : child.start].rstrip())
        spaces_after = len(source[child.end : parent.end]) - len(source[child.end : parent.end].lstrip())
        if child.point and child.point.spaced:
            spaces_before += 1
        aligned = [(atom.source, atom) for atom in self.atoms[slice(*atoms)] if atom.source]
        earlier = [(end, atom.end) for (start, end), atom in aligned if parent.start <= start < child.start]
        later = [(start, atom.start) for (start, end), atom in aligned if child.end <= start < parent.end]
        opens = child.point is not None and child.point.kind == "open"
        if later and (opens or not earlier or (spaces_before and not spaces_after)):
            place, forward = min(later)[1], False
            within_child = child.end - child.start if source[child.start : child.end].isspace() else 0
            for _ in range(spaces_after + within_child):
                place -= place > within[0] and target[place - 1].isspace()
        else:
            place, forward = max(earlier)[1] if earlier else within[0], True
            for _ in range(spaces_before):
                place += place < within[1] and target[place].isspace()
        return next((end if forward else start for start, end in taken if start < place < end), place)

    def _end_of_spaces(self, start: int, child: _Element, points: Sequence[int], taken: Sequence[Range], limit: int) -> int:
        """Return where an element that holds only spaces ends: at the most where another begins."""
        if child.start == child.end:
            return start
        end, later = start, [*(point for point in points if point > start), *(first for first, _ in taken if first >= start)]
        limit = min([limit, *later])
        while end < limit and end - start < child.end - child.start and self.target[end].isspace():
            end += 1
        return end

    def _neighbours(self, child: _Element) -> tuple[str, str]:
        """Return the characters before and after a point in the source, none where a tag comes first."""
        if child.point is None or child.point.kind != "point":
            return "", ""
        text, tags, number, place = self.markup.text, self.markup.tags, child.number, child.start
        before = "" if number and tags[number - 1].place == place else text[:place][-1:]
        after = "" if number + 1 < len(tags) and tags[number + 1].place == place else text[place : place + 1]
        return " " if child.point.spaced else before, after


def _apart(source: str, target: str, marks: frozenset[str]) -> bool:
    """Return whether a point needs a space beside a character of the translation, if this one was beside it in the source."""
    if not source or not target or target.isspace():
        return False
    return target not in marks if source.isspace() else target.isalnum() and not source.isalnum()


def _owner(children: Sequence[_Element], atom: Atom) -> _Element | None:
    """Return the element with most of the characters that an atom is aligned to."""
    if atom.source is None:
        return None
    start, end = atom.source
    overlaps = [min(end, child.end) - max(start, child.start) for child in children]
    most = max(overlaps, default=0)
    return children[overlaps.index(most)] if most > 0 else None


def _best_span(votes: Sequence[int | None]) -> Range | None:
    """Return the range with the largest sum, the longest of several, that begins and ends with a 1 and holds no None."""
    best, found, total, start = (0, 0), None, -1, 0
    for number, vote in enumerate(votes):
        if vote == 1 and total < 0:
            total, start = 0, number
        total = -1 if vote is None else total + vote if total >= 0 else total
        if vote == 1 and (total, number - start) > best:
            best, found = (total, number - start), (start, number + 1)
    return found
