"""Measure what a translator makes of texts as people write them: the robustness table of an evaluation."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tqdm import tqdm

from translator.config.languages import split_tag
from translator.config.options import SearchConfig
from translator.evaluation.perturbations import KEPT, SCORED, Kept, Scored
from translator.inference.ranking import NUMBER, as_line
from translator.inference.translator import Translator
from translator.metrics.metric import METRICS
from translator.metrics.scores import score
from translator.runtime.atomic_files import write_text
from translator.text.sentence_splitter import rejoined
from translator.text.writing_systems import normal

# Sentences of each scored row, and of each group of kept items; drawn by SEED from the split.
SENTENCES, SEED = 300, 1
# A row is left out if it changes a smaller share of the sentences, as capitals do where a script has none.
LEAST_CHANGED = 0.1


@dataclass(frozen=True)
class Sentence:
    """A test sentence with its translation by the system under test."""

    tag: str  # of the language wanted; empty without
    source: str
    reference: str
    output: str


@dataclass(frozen=True)
class Row:
    """A row of the table: a BLEU score beside the possible one, or a percentage."""

    name: str
    count: int  # lines or items
    value: float
    possible: float = 100.0

    @property
    def share(self) -> float:
        return self.value / self.possible if self.possible else 1.0


@dataclass(frozen=True)
class Robustness:
    """The robustness table."""

    scored: Sequence[Row]
    kept: Mapping[str, Sequence[Row]]  # by group, its total first
    alignment: Row

    def save(self, folder: Path) -> None:
        """Write robustness.json and robustness.txt."""
        figures = {
            "scored": [dataclasses.asdict(row) | {"share": row.share} for row in self.scored],
            "kept": {group: list(map(dataclasses.asdict, rows)) for group, rows in self.kept.items()},
            "alignment": dataclasses.asdict(self.alignment)}
        write_text(folder / "robustness.json", json.dumps(figures, ensure_ascii=False, indent=1) + "\n")
        write_text(folder / "robustness.txt", f"{self}\n")

    def __str__(self) -> str:
        lines = [f"{'as people write it':24} {'lines':>6} {'BLEU':>7} {'possible':>9} {'share':>7}"]
        lines += [
            f"{row.name:24} {row.count:6,} {row.value:7.2f} {row.possible:9.2f} {row.share:7.1%}" for row in self.scored]
        lines += [f"{'kept':24} {'items':>6} {'share':>7}"]
        for total, *rows in (*self.kept.values(), (self.alignment,)):
            lines += [f"{total.name:24} {total.count:6,} {total.value:6.1f}%"]
            lines += [f"  {row.name:22} {row.count:6,} {row.value:6.1f}%" for row in rows]
        return "\n".join(lines)


def measure_robustness(
    translator: Translator, sources: Sequence[str], references: Sequence[str], outputs: Sequence[str], search: SearchConfig,
    language: str,
) -> Robustness:
    """Translate changed versions of some sentences, and score what comes out.

    outputs: the translator's for `sources`; language: of references and outputs.
    """
    tagged = [split_tag(text) if translator.source_tokenizer.has_tags else ("", text) for text in sources]
    sentences = [Sentence(*pair, *rest) for pair, *rest in zip(tagged, references, outputs, strict=True)]
    drawn = Random(SEED).sample(sentences, min(SENTENCES, len(sentences)))
    drawn.sort(key=lambda sentence: sentence.tag)  # the sentences of a joined line want one language
    scored = [(row, lines) for row in SCORED if (lines := _changed(row, drawn))]
    kept = [(group, row, lines) for group in KEPT for row, lines in _with_items(group, sentences, drawn)]
    texts = [line.tag + line.source for _, lines in scored for line in lines]
    texts += [text for *_, lines in kept for text, _ in lines]
    stream = translator.stream(texts, search)
    results = (found.text for found in tqdm(stream, total=len(texts), unit=" lines", leave=False, disable=None))
    rows = [_plain(drawn, language)]
    rows += [_scored(row, lines, list(itertools.islice(results, len(lines))), language) for row, lines in scored]
    counts = {group: {
        row.name: [row.holds(next(results), item) for _, item in lines] for name, row, lines in kept if name == group}
        for group in KEPT}
    return Robustness(
        rows, {group: _percentages(group, by_row) for group, by_row in counts.items()},
        _alignment(translator, sentences, search))


def evident_links(source: str, reference: str, common: Set[str]) -> list[tuple[int, int]]:
    """Return the places (source, reference), from 0, of words that surely translate each other.

    They are numbers and names, alike on both sides and once on each. Capitals begin sentences too, so a name must not be among
    the `common` words, which are written in small letters elsewhere.
    """
    sides = _words(source), _words(reference)
    once = [{word for word, times in Counter(words).items() if times == 1} for words in sides]
    return [
        (sides[0].index(word), place) for place, word in enumerate(sides[1])
        if word in once[0] & once[1] and (NUMBER.fullmatch(word) or (_is_name(word) and word.lower() not in common))]


def _words(text: str) -> list[str]:
    """Return the words of a text without the marks around them, as alignments number them."""
    return [re.sub(r"^\W+|\W+$", "", word) for word in normal(text).split()]


def _is_name(word: str) -> bool:
    return len(word) >= 3 and word.isalpha() and word[0].isupper()


def _changed(row: Scored, sentences: Sequence[Sentence]) -> list[Sentence]:
    """Return the lines of a row, each with its possible output; none if the row changes too few sentences."""
    if row.joined > 1:
        return list(_joined(sentences, row.joined))
    random = Random(f"{SEED} {row.name}")
    lines = [
        Sentence(one.tag, row.source(one.source, random), row.target(one.reference, random), row.target(one.output, random))
        for one in sentences]
    differ = sum(line.source != one.source for line, one in zip(lines, sentences, strict=True))
    return lines if differ >= LEAST_CHANGED * len(lines) else []


def _joined(sentences: Sequence[Sentence], size: int) -> Iterator[Sentence]:
    """Yield lines of several sentences of one tag."""
    for tag, same in itertools.groupby(sentences, lambda sentence: sentence.tag):
        rest = list(same)
        for first in range(0, len(rest) - size + 1, size):
            group = rest[first : first + size]
            sides = zip(*((one.source, one.reference, one.output) for one in group), strict=True)
            yield Sentence(tag, *(rejoined(side, itertools.repeat(" ", size)) for side in sides))


def _with_items(
    group: str, sentences: Sequence[Sentence], drawn: Sequence[Sentence]
) -> Iterator[tuple[Kept, list[tuple[str, str]]]]:
    """Yield each row of a group with its texts and the item that was put into each."""
    rows = KEPT[group]
    for number, row in enumerate(rows):
        random = Random(f"{SEED} {group} {row.name}")
        own = drawn[number :: len(rows)]
        if group == "numbers":  # in place of a number that is alike on both sides, as far as the split has any
            own = [*filter(_shares_number, sentences), *(one for one in own if not NUMBER.search(one.source))][: len(own)]
        items = [row.item(random) for _ in own]
        yield row, [(one.tag + row.put(one.source, item, random), item) for one, item in zip(own, items, strict=True)]


def _shares_number(sentence: Sentence) -> bool:
    number = NUMBER.search(sentence.source)
    return number is not None and number[0] in NUMBER.findall(sentence.reference)


def _plain(sentences: Sequence[Sentence], language: str) -> Row:
    bleu = _bleu([one.output for one in sentences], [one.reference for one in sentences], language)
    return Row("plain", len(sentences), bleu, bleu)


def _scored(row: Scored, lines: Sequence[Sentence], outputs: Sequence[str], language: str) -> Row:
    case = str.casefold if row.lower_cased else str
    references = [case(line.reference) for line in lines]
    value, possible = (
        _bleu(list(map(case, texts)), references, language) for texts in (outputs, [line.output for line in lines]))
    return Row(row.name + ", lower-cased" * row.lower_cased, len(lines), value, possible)


def _bleu(outputs: Sequence[str], references: Sequence[str], language: str) -> float:
    return score({"bleu": METRICS["bleu"](language)}, outputs, list(map(as_line, outputs)), references)["bleu"].value


def _percentages(group: str, kept: Mapping[str, Sequence[bool]]) -> list[Row]:
    """Return the rows of a group, its total first."""
    together = {group: list(itertools.chain(*kept.values())), **(kept if len(kept) > 1 else {})}
    return [Row(name, len(found), 100 * sum(found) / max(1, len(found))) for name, found in together.items()]


def _alignment(translator: Translator, sentences: Sequence[Sentence], search: SearchConfig) -> Row:
    """Return how many evident links the translator finds between sources and references."""
    common = {word for one in sentences for text in (one.source, one.reference) for word in _words(text) if word.islower()}
    evident = [(one, links) for one in sentences if (links := evident_links(one.source, one.reference, common))]
    details = translator.details([one.tag + one.source for one, _ in evident], [one.reference for one, _ in evident], search)
    right = [
        [s for s, t in found.alignment if t == target] == [source]
        for (_, links), found in zip(evident, details, strict=True) if found is not None for source, target in links]
    return _percentages("alignment", {"": right})[0]
