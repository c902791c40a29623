"""Surface form: how a sentence was written, set aside for the model and given back to its translation.

Marks around a sentence, typographic quotes, capitals and parts to keep are rare in training texts, and cost the model dearly.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from translator.text.letter_case import in_capitals, in_title_case, lowered, sentence_case
from translator.text.peeling import ENDS, peel
from translator.text.placeholders import Span, fill, find_spans, joined, mask, numbers_in, placeholder
from translator.text.tokenizer import UNK_ID, WORD_START, Tokenizer
from translator.text.writing_systems import is_word

PLAIN = dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‘’‚‛", "'") | dict.fromkeys("–—―", "-")
CLOSING = {"„": "“", "“": "”", "«": "»", "»": "«"}  # for a sentence that has one quote only
# Soft hyphens, and marks of direction: they are not given back, since what they were for has changed.
INVISIBLE = re.compile(r"[\u00ad\u2060-\u2064\u202a-\u202e\u2066-\u2069]")
LONE_HYPHEN = re.compile(r"(?<!\S)-(?!\S)")
# Words with unknown characters are left to the model if they hold a larger share of the sentence's letters.
MOST_UNKNOWN = 0.5
# A word within a sentence. If it begins with a capital and has this many pieces, a model hardly copies it.
INNER_WORD = re.compile(r"(?<=[\w,;:] )[^\W\d_]+(?:-[^\W\d_]+)*(?=(?:['’]s)?(?!['’\w-]))")
PIECES_OF_NAME = 3
NAME_FACTOR = 1.3  # how much rarer a name is without its capital, at least


@dataclass(frozen=True)
class SurfaceForm:
    """What a model translates in place of a sentence, and how the sentence was written."""

    text: str  # for the model; empty if there is nothing to translate
    source: str
    front: str = ""  # set aside before and behind `text`
    back: str = ""
    replaces_end: bool = False  # `back` begins with the sentence's own end marks
    upper: bool = False
    quotes: tuple[str, str] = ('"', '"')  # opening and closing
    apostrophe: str = "'"
    dash: str = "-"
    values: tuple[str, ...] = ()  # of the placeholders in `text`
    unkept: tuple[str, ...] = ()  # what placeholders stood for that no output kept

    @property
    def is_plain(self) -> bool:
        """Whether the model gets the sentence itself."""
        return self.text == self.source

    def without_placeholders(self) -> SurfaceForm:
        """Return the form with what the placeholders of its text stand for."""
        return dataclasses.replace(self, text=fill(self.text, self.values), values=(), unkept=self.values)

    def restore(self, output: str) -> str:
        """Return an output of the model as the sentence was written."""
        return "".join(self.restore_parts([output]))

    def restore_parts(self, parts: Sequence[str]) -> list[str]:
        """Return parts of an output, one for each: joined, they are the output restored. Placeholders must not be divided."""
        if self.is_plain or not parts:
            return list(parts)
        restored = self._styled(self._without_end(parts))
        restored = [fill(part.upper() if self.upper else part, self.values) for part in restored]
        restored[0] = self.front + restored[0]
        restored[-1] += self.back
        return restored

    def _without_end(self, parts: Sequence[str]) -> list[str]:
        """Drop the end marks of an output if `back` has them."""
        output = "".join(parts)
        kept = len(output.rstrip(ENDS) if self.replaces_end else output)
        starts = accumulate(map(len, parts), initial=0)
        return [part[: max(0, kept - start)] for start, part in zip(starts, parts, strict=False)]

    def _styled(self, parts: Sequence[str]) -> list[str]:
        """Write quotes and dashes as the sentence has them."""
        dashed = LONE_HYPHEN.sub(self.dash, "".join(parts))
        opening, closing = self.quotes
        styled = re.sub('"([^"]*)"', rf"{opening}\1{closing}", dashed).replace('"', opening).replace("'", self.apostrophe)
        starts = accumulate(map(len, parts), initial=0)
        return [styled[start : start + len(part)] for start, part in zip(starts, parts, strict=False)]

    def source_parts(self, parts: Sequence[str]) -> list[str]:
        """Return the part of the sentence for each part of `text`: joined, they are the sentence."""
        if self.is_plain or not parts:
            return list(parts)
        start = max(0, self.source.find(self.front)) + len(self.front)
        ends = list(accumulate((len(fill(part, self.values)) for part in parts[:-1]), initial=start))[1:]
        return [self.source[first:last] for first, last in pairwise([0, *ends, len(self.source)])]

    def renumbered(self, links: Sequence[tuple[int, int]], output: str) -> tuple[list[tuple[int, int]], int, int]:
        """Return word links of `text` and `output` as links of the sentence and the output restored, and the words of both.

        Words are separated by spaces. What stands around the text is linked to itself, and so are the values of placeholders.
        """
        front, back = len(f"{self.front}x".split()) - 1, len(f"x{self.back}".split()) - 1
        if not self.text:
            front, back = len(self.front.split()), 0
        starts, output_starts = (
            list(accumulate((len(fill(word, self.values).split()) for word in side.split()), initial=front))
            for side in (self.text, output))
        masked = {number: word for word, part in enumerate(self.text.split()) for number in numbers_in(part)}
        filled = {word: numbers_in(part) for word, part in enumerate(output.split())}
        origins = {word: source for source, word in links}
        origins |= {word: masked[numbers[0]] for word, numbers in filled.items() if numbers and numbers[0] in masked}
        inner = [
            (min(starts[source] + number, starts[source + 1] - 1), place)
            for word, source in sorted(origins.items()) if source + 1 < len(starts) and word + 1 < len(output_starts)
            for number, place in enumerate(range(output_starts[word], output_starts[word + 1]))]
        before = [(number, number) for number in range(front)]
        behind = [(starts[-1] + number, output_starts[-1] + number) for number in range(back)]
        return [*before, *inner, *behind], starts[-1] + back, output_starts[-1] + back

    def model_output(self, text: str) -> str | None:
        """Return an output of the model that is restored to `text`; None if no output is."""
        if self.is_plain:
            return text
        output = text.removeprefix(self.front).removesuffix(self.back)
        for number, value in enumerate(self.values, 1):
            output = output.replace(value, placeholder(number), 1)
        for typographic in (*self.quotes, self.apostrophe, self.dash):
            output = output.replace(typographic, PLAIN.get(typographic, typographic))
        if self.upper:
            output = output[:1] + lowered(output[1:])
        output += self.text[-1:] if self.replaces_end else ""
        return output if self.restore(output) == text else None


class SurfaceForms:
    """Find the surface form of sentences for a model."""

    def __init__(self, source: Tokenizer, target: Tokenizer, *, names_have_capitals: bool = False) -> None:
        """names_have_capitals: whether sources write names with a capital, and few other words."""
        self.source, self.target, self.names_have_capitals = source, target, names_have_capitals

    def of(self, sentence: str) -> SurfaceForm:
        """Return the form of a sentence. An ordinary one is its own text."""
        peeled = peel(INVISIBLE.sub("", sentence.strip()), self._is_name)
        spans = find_spans(peeled.text)
        form = self._plain_marks(SurfaceForm(peeled.text, sentence, peeled.front, peeled.back, peeled.replaces_end))
        form = self._in_sentence_case(form, spans)
        spans = joined([*spans, *self._unknown_words(form.text, spans), *self._rare_names(form.text)])
        if not any(map(str.isalpha, blanked(form.text, spans))):
            return SurfaceForm("", sentence, sentence.strip())
        if self._masks:
            _, values = mask(peeled.text, spans)  # as written
            text, masked = mask(form.text, spans)
            form = dataclasses.replace(form, text=text, values=values[: len(masked)])
        return SurfaceForm(sentence, sentence) if form.text == sentence.strip() else form

    @cached_property
    def _masks(self) -> bool:
        """Whether both vocabularies have all placeholders."""
        return all(set(map(placeholder, range(1, 10))) <= set(side.placeholders) for side in (self.source, self.target))

    def _is_name(self, label: str) -> bool:
        """Return whether words, in any case, are names: pieces of both vocabularies, of the source's only with a capital."""
        if self.source is self.target:
            return False  # it has the words of both languages
        for word in (part.capitalize() if part.isupper() else part for part in label.split()):
            pieces = [WORD_START + word, WORD_START + word.lower()]
            with_capital, without = self.source.ids_of(pieces)
            unknown = UNK_ID in (with_capital, *self.target.ids_of(pieces[:1])) or without != UNK_ID
            if unknown or not word.istitle() or self.source.cost(word.lower()) < NAME_FACTOR * self.source.cost(word):
                return False
        return True

    def _plain_marks(self, form: SurfaceForm) -> SurfaceForm:
        """Replace typographic quotes and lone dashes by the plain ones that the vocabulary has more often."""
        text, used = form.text, [mark for mark in form.text if mark in PLAIN and self._is_rarer(mark)]
        double, single, dashes = ([mark for mark in used if PLAIN[mark] == plain] for plain in "\"'-")
        for mark in (*double, *single):
            text = text.replace(mark, PLAIN[mark])
        for mark in dashes:
            text = re.sub(rf"(?<!\S){mark}(?!\S)", "-", text)
        opening = double[0] if double else '"'
        closing = double[1] if len(double) > 1 else CLOSING.get(opening, opening)
        return dataclasses.replace(
            form, text=text, quotes=(opening, closing), apostrophe=[*single, "'"][0], dash=[*dashes, "-"][0])

    def _is_rarer(self, mark: str) -> bool:
        return self.source.cost(mark) > self.source.cost(PLAIN[mark])

    def _in_sentence_case(self, form: SurfaceForm, spans: Sequence[Span]) -> SurfaceForm:
        """Return a form in sentence case if the sentence is in capitals or in title case; spans keep theirs."""
        words, cost = blanked(form.text, spans), self.source.cost
        upper = in_capitals(words, cost)
        if not (upper or in_title_case(words, cost)):
            return form
        cased = list(sentence_case(words, cost))
        for start, end in spans:
            cased[start:end] = form.text[start:end]
        return dataclasses.replace(form, text="".join(cased), upper=upper)

    def _unknown_words(self, text: str, spans: Sequence[Span]) -> list[Span]:
        """Return the words that hold characters the vocabulary lacks, unless most of the text is such."""
        end = len(text.rstrip(ENDS))  # a mark, known or not, is the model's to place
        unknown = [span for span in self.source.unknown_spans(text) if span[0] < end]
        if not unknown:
            return []
        words = joined([_word_around(text, start, end) for start, end in unknown])
        outside = blanked(text, spans)
        letters, known = (sum(map(str.isalpha, part)) for part in (outside, blanked(outside, words)))
        return words if letters - known <= MOST_UNKNOWN * letters else []

    def _rare_names(self, text: str) -> list[Span]:
        """Return the names that the vocabulary spells in many pieces, if sources show by capitals what a name is."""
        words = INNER_WORD.finditer(text) if self.names_have_capitals else ()
        return [word.span() for word in words if word[0][0].isupper() and not word[0].isupper()
                and len(self.source.spell(word[0])) >= PIECES_OF_NAME]


def _word_around(text: str, start: int, end: int) -> Span:
    """Return the span with the rest of the words that it begins and ends in."""
    while start and is_word(text[start - 1]) and is_word(text[start]):
        start -= 1
    while end < len(text) and is_word(text[end - 1]) and is_word(text[end]):
        end += 1
    return start, end


def blanked(text: str, spans: Sequence[Span]) -> str:
    """Return a text with spaces in place of spans."""
    characters = list(text)
    for start, end in spans:
        characters[start:end] = " " * (end - start)
    return "".join(characters)
