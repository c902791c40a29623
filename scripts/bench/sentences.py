"""Measure where texts are split into sentences: `python scripts/bench/sentences.py CORPORA [--splitter pysbd]`.

On rows of CORPORA/multi30k and CORPORA/tatoeba-2018, joined 2 to 5 to a line, and on the texts in tests/support/sentences.txt.
One table in Markdown on stdout: precision, recall and F1 of the ends within a line, and the lines split right throughout.
Other splitters must be installed: pysbd, syntok, sentence-splitter (Moses), sentencex, nupunkt.
"""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import argparse
import gzip
import importlib
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from translator.runtime.errors import UserError
from translator.text.sentence_splitter import split_sentences

ROOT = Path(__file__).parents[2]
HAND_WRITTEN = ROOT / "tests" / "support" / "sentences.txt"
CORPORA = {  # file: its languages
    "multi30k/train.jsonl.gz": ("en", "de", "fr", "cs"), "tatoeba-2018/en-de.train.jsonl.gz": ("en", "de"),
    "tatoeba-2018/en-fr.train.jsonl.gz": ("en", "fr"), "tatoeba-2018/en-es.train.jsonl.gz": ("en", "es")}
LANGUAGES = ("en", "de", "fr", "es", "cs")
MARK = re.compile(r"[.!?…]+[\"'”’“»)]*(?=\s)")
ENDED = re.compile(r"[.!?…][\"'”’“»)]*$")
Splitter = Callable[[str], Iterable[str]]


@dataclass(frozen=True)
class Text:
    """A text as its sentences, whose ends are known."""

    sentences: tuple[str, ...]  # with the space after each
    language: str
    kind: str


@dataclass
class Counts:
    """Ends within texts, and texts."""

    found: int = 0
    known: int = 0
    right: int = 0
    texts: int = 0
    wholly_right: int = 0

    def add(self, known: set[int], found: set[int]) -> None:
        self.found += len(found)
        self.known += len(known)
        self.right += len(known & found)
        self.texts += 1
        self.wholly_right += known == found

    def cells(self) -> list[str]:
        precision, recall = self.right / max(1, self.found), self.right / max(1, self.known)
        f1 = 2 * precision * recall / max(1e-9, precision + recall)
        return [f"{100 * value:.2f}" for value in (precision, recall, f1, self.wholly_right / max(1, self.texts))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, help="folder of multi30k and tatoeba-2018")
    parser.add_argument("--splitter", choices=SPLITTERS, default="translator")
    parser.add_argument("--lines", type=int, default=2000, help="joined lines of each corpus and language")
    parser.add_argument("--kinds", action="store_true", help="a row for each way of joining")
    parser.add_argument("--wrong", type=int, default=0, help="texts to show that were split wrongly, of each table row")
    options = parser.parse_args()
    print("| language | texts | lines | precision | recall | F1 | lines right | lines/s |\n|" + " --- |" * 8)
    texts = [*hand_written(), *joined_rows(options.corpora, options.lines)]
    key = (lambda text: (text.language, text.kind)) if options.kinds else (
        lambda text: (text.language, "hand-written" if text.kind == "hand-written" else "joined rows"))
    for (language, kind), group in itertools.groupby(sorted(texts, key=key), key=key):
        split, members = SPLITTERS[options.splitter](language), list(group)
        start, counts, wrong = time.perf_counter(), Counts(), []
        for text in members:
            known, found = ends(text.sentences), ends(split("".join(text.sentences)))
            counts.add(known, found)
            if known != found:
                wrong.append(text)
        speed = len(members) / (time.perf_counter() - start)
        print(f"| {' | '.join([language, kind, f'{len(members):,}', *counts.cells(), f'{speed:,.0f}'])} |", flush=True)
        for text in wrong[: options.wrong]:
            print("    known " + "|".join(text.sentences) + "\n    found " + "|".join(split("".join(text.sentences))))


def ends(sentences: Iterable[str]) -> set[int]:
    """Return how many characters other than spaces stand before each end but the last: splitters may change spaces."""
    lengths = [len("".join(sentence.split())) for sentence in sentences]
    return set(itertools.accumulate(lengths[:-1])) - {0, sum(lengths)}


def hand_written() -> Iterator[Text]:
    """Yield the hand-written texts."""
    language = ""
    for line in HAND_WRITTEN.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            language = line.removeprefix("# ")
        elif line:
            yield Text(tuple(line.split("|")), language, "hand-written")


def joined_rows(corpora: Path, lines: int, chosen: Container[str] = LANGUAGES) -> Iterator[Text]:
    """Yield rows of real sentences, joined 2 to 5 to a line, drawn alike by each call."""
    for name, all_languages in CORPORA.items():
        languages = [language for language in all_languages if language in chosen]
        if not languages:
            continue
        if not (corpora / name).is_file():
            raise UserError(f"{corpora / name}: not found. Name the folder that holds multi30k and tatoeba-2018.")
        with gzip.open(corpora / name, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in itertools.islice(file, 30 * lines)]
        for language in languages:
            draw = random.Random(f"{name} {language}")
            known = [row[language].strip() for row in rows if is_one_sentence(row, language)]
            yield from (joined(known, language, draw) for _ in range(lines))


def is_one_sentence(row: dict[str, str], language: str) -> bool:
    """Return whether a row is one sentence that ends in a mark: neither it nor a translation has a mark within it."""
    return bool(ENDED.search(row[language].strip())) and not all(MARK.search(text.strip()) for text in row.values())


def joined(rows: list[str], language: str, draw: random.Random) -> Text:
    """Join 2 to 5 rows in a way that people write."""
    kind = draw.choice(list(KINDS))
    drawn = KINDS[kind](draw.sample(rows, draw.randint(2, 5)), draw)
    space = "" if kind == "no space" else draw.choice([" "] * 8 + ["  ", "\n"])
    return Text((*(row + space for row in drawn[:-1]), drawn[-1]), language, kind)


def uncapitalised(row: str) -> str:
    return row[:1].lower() + row[1:]


def other_marks(rows: list[str], draw: random.Random) -> list[str]:
    marks = ("!", "?", "...", "…", "?!", "!!!", " !", " ?")
    return [row.removesuffix(".") + draw.choice(marks) if row.endswith(".") else row for row in rows]


def quoted(rows: list[str], draw: random.Random) -> list[str]:
    pairs = [("“", "”"), ("„", "“"), ("«", "»"), ("(", ")"), ('"', '"'), ("'", "'")]
    return [left + row + right for row, (left, right) in zip(rows, draw.choices(pairs, k=len(rows)), strict=True)]


KINDS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "plain": lambda rows, draw: rows,
    "no capitals": lambda rows, draw: [row.lower() for row in rows],
    "no first capitals": lambda rows, draw: list(map(uncapitalised, rows)),
    "one capital": lambda rows, draw: [rows[0], *map(uncapitalised, rows[1:])],
    "all capitals": lambda rows, draw: [row.upper() for row in rows],
    "other marks": other_marks,
    "quotes": quoted,
    "list": lambda rows, draw: [f"{number}. {row}" for number, row in enumerate(rows, 1)],
    "no last mark": lambda rows, draw: [*rows[:-1], ENDED.sub("", rows[-1])],
    "no space": lambda rows, draw: rows}


def _pysbd(language: str) -> Splitter:
    known = importlib.import_module("pysbd.languages").LANGUAGE_CODES
    return importlib.import_module("pysbd").Segmenter(language if language in known else "sk", clean=False).segment


def _syntok(language: str) -> Splitter:
    analyze = importlib.import_module("syntok.segmenter").analyze
    return lambda text: [
        "".join(token.spacing + token.value for token in sentence) for paragraph in analyze(text) for sentence in paragraph]


def _moses(language: str) -> Splitter:
    known = language if language in ("en", "de", "fr", "es", "cs", "ru") else "en"
    return importlib.import_module("sentence_splitter").SentenceSplitter(known).split


def _sentencex(language: str) -> Splitter:
    segment = importlib.import_module("sentencex").segment
    return lambda text: segment(language, text)


def _nupunkt(language: str) -> Splitter:
    return importlib.import_module("nupunkt").sent_tokenize


SPLITTERS: dict[str, Callable[[str], Splitter]] = {
    "translator": lambda language: split_sentences, "pysbd": _pysbd, "syntok": _syntok, "moses": _moses,
    "sentencex": _sentencex, "nupunkt": _nupunkt}


if __name__ == "__main__":
    with one_line_errors():
        main()
