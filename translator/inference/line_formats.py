"""Lines in, lines out: what a line of a file asks for, and the line that answers it."""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

from translator.data.text_files import other_content
from translator.inference.details import Details
from translator.inference.translation import Given, Request, Translation, decoded
from translator.runtime.errors import UserError

Format = Literal["text", "jsonl", "html"]
# Bytes read together: some hundred lines, enough for full batches, and few enough to answer soon.
READ_BYTES = 1 << 16
# Most bytes of a line. One more of a longer line is kept, to refuse it.
LONGEST = 1 << 24
TOO_LONG = f"longer than {LONGEST:,} bytes"
# What a file of texts cannot hold within one: the tab between n-best translations, and all that programs read as a line's end.
SEPARATORS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]")
# Fields that an answer adds to an object: in the input they come from an earlier answer, and are dropped.
ANSWERS = {"translation", "score", "n_best", "tokens", "alignment", "refused", "warnings"}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of input: what to translate, or why it cannot be read, and the fields of its object."""

    request: Request
    problem: str = ""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: int = 0  # bytes


def choose_format(name: str | None, chosen: Format | Literal["auto"]) -> Format:
    """Return the format chosen, or that of a file's name: jsonl if it ends in .jsonl or .jsonl.gz, html for .html and .htm."""
    if chosen != "auto":
        return chosen
    plain = (name or "").removesuffix(".gz").lower()
    return "jsonl" if plain.endswith(".jsonl") else "html" if plain.endswith((".html", ".htm")) else "text"


def parse(line: bytes, form: Format) -> Line:
    """Read a text, or an object {"source": ..., "prefix": ..., "required": [...]}, whose last two fields are optional."""
    size = len(line) + 1
    if len(line) > LONGEST:
        return Line(Request(""), f"{TOO_LONG}; not translated", size=size)
    if form == "text":
        return Line(Request(line), size=size)
    fields: dict[str, Any] = {}
    try:
        fields = {name: value for name, value in _object(line).items() if name not in ANSWERS}
        return Line(_request(fields), "", fields, size)
    except ValueError as error:
        return Line(Request(""), f"{error}; not translated", fields, size)


def _request(fields: dict[str, Any]) -> Request:
    """Read the fields that ask for a translation, where null counts as absent; ValueError for a wrong type."""
    source, prefix, required = (fields.get(name) for name in ("source", "prefix", "required"))
    required = [] if required is None else required
    if not isinstance(source, str):
        raise ValueError('no text in "source"')
    if prefix is not None and not isinstance(prefix, str):
        raise ValueError('"prefix" must be text')
    if not isinstance(required, list) or not all(isinstance(phrase, str) for phrase in required):
        raise ValueError('"required" must be a list of texts')
    return Request(source, prefix, tuple(required))


def parse_pair(parsed: Line, given: bytes, given_form: Format) -> tuple[Line, str, Given, str]:
    """Return a line, its source in its context, the translation given for it, and what is wrong; empty if unreadable."""
    source, target, problem = "", Given(""), parsed.problem
    try:
        source = parsed.request.context + decoded(parsed.request.text)
    except ValueError as error:
        problem = problem or f"source: {error}; not scored"
    try:
        target = _given(given, given_form)
    except ValueError as error:
        problem = problem or f"translation: {error}; not scored"
    return parsed, source, target, problem


def _given(line: bytes, form: Format) -> Given:
    """Read a translation to score: a text, or an object's "translation" and "tokens"; ValueError if it holds no text."""
    if len(line) > LONGEST:
        raise ValueError(TOO_LONG)
    fields: dict[str, Any] = {"translation": decoded(line)} if form == "text" else _object(line)
    text = fields.get("translation")
    if not isinstance(text, str):
        raise ValueError('no text in "translation"')
    try:
        pieces = [str(token["piece"]) for token in fields["tokens"]]
    except (KeyError, TypeError):  # not as `format_answer` writes them
        pieces = []
    return Given(decoded(text), pieces)


def _object(line: bytes) -> dict[str, Any]:
    """Parse a JSON object; ValueError, which says why, for anything else, a repeated name, or a number that is not finite."""
    try:
        fields = json.loads(line, object_pairs_hook=_without_repetition)
        json.dumps(fields, allow_nan=False)  # no number may be infinite
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name is given twice")
    return fields


def format_answer(line: Line, translation: Translation, details: Details | None, form: Format) -> bytes:
    """Format the n best translations, tab-separated or as the line's object with scores, and details if given.

    All objects have the same fields: without a translation, score is null and the lists are empty.
    """
    if form == "text":
        return ("\t".join(SEPARATORS.sub(" ", text) for text in translation.texts) + "\n").encode()
    found = [
        {"translation": text, "score": hypothesis.score, "log_probability": hypothesis.log_probability}
        for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=False)]
    return as_json(_input_fields(line) | {
        "translation": translation.text, "score": found[0]["score"] if found else None, "n_best": found,
        "refused": line.problem or translation.refused or None, "warnings": translation.warnings,
        **(_detail_fields(details) if details else {})})


def format_score(line: Line, translation: str, details: Details | None, problem: str, form: Format) -> bytes:
    """Format the score of a given translation, an empty line without one; or an object with its details."""
    if form == "text":
        return f"{details.score:.6f}\n".encode() if details else b"\n"
    return as_json(_input_fields(line) | {
        "translation": translation, "score": details.score if details else None, "refused": problem or None,
        **_detail_fields(details or Details())})


def _input_fields(line: Line) -> dict[str, Any]:
    source = line.request.text
    return line.fields or {"source": source.decode(errors="replace") if isinstance(source, bytes) else source}


def notices(line: Line, translation: Translation) -> Iterator[str]:
    """Yield what a person should know about a line."""
    if line.problem or translation.refused:
        yield line.problem or translation.refused
    yield from translation.warnings
    if translation.hit_limit:
        yield "the translation ended only because it had reached the longest length allowed"


def _detail_fields(details: Details) -> dict[str, Any]:
    """Return the fields that show a translation token by token."""
    return {
        "tokens": [
            {"piece": piece, "log_probability": value}
            for piece, value in zip(details.pieces, details.log_probabilities, strict=True)],
        "alignment": " ".join(f"{source}-{target}" for source, target in details.alignment)}


def as_json(fields: dict[str, Any]) -> bytes:
    """Format an object as a line."""
    try:
        return (json.dumps(fields, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can spell
        return (json.dumps(fields) + "\n").encode()


def arriving_lines(file: io.BufferedReader, name: str | None, option: str = "input") -> Iterator[list[bytes]]:
    """Yield the lines that each read completes: many of a file, of a terminal or a slow pipe those just written.

    As bytes, so that a line that is not UTF-8 is refused on its own. Only line feeds separate lines.
    """
    mark = codecs.BOM_UTF8  # Windows writes it before the first line
    rest: list[bytes] = []  # the parts of a line whose end has not come yet
    length = 0
    try:
        while data := file.read1(READ_BYTES):
            if mark and not rest and (words := other_content(data)):
                raise UserError(f"{'stdin' if name is None else f'{option}={name}'}: {words}")
            first, *others = data.split(b"\n")
            rest.append(first[: max(0, LONGEST + 1 - length)])
            length += len(first)
            if others:
                yield [line.removesuffix(b"\r") for line in (b"".join(rest).removeprefix(mark), *others[:-1])]
                rest, length, mark = [others[-1]], len(others[-1]), b""
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{option}={name}: damaged .gz file: {error}") from error
    if last := b"".join(rest).removeprefix(mark):
        yield [last.removesuffix(b"\r")]


def open_input(name: str | None, option: str = "input", *,
               text: str | None = None) -> AbstractContextManager[io.BufferedReader]:
    """Open a file, unpacked if its name ends in .gz; without a name this text, or else stdin."""
    if text is not None:
        return io.BufferedReader(io.BytesIO(text.encode(errors="surrogateescape")))
    if name is None:
        return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))
    try:
        return cast(io.BufferedReader, gzip.open(name)) if name.endswith(".gz") else Path(name).open("rb")
    except OSError as error:
        problem = "is a folder" if isinstance(error, IsADirectoryError) else error.strerror
        raise UserError(f"{option}={name}: {problem}. Name a file that can be read.") from error
