"""Lines in, lines out: what a line of a file asks for, and the line that answers it."""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import io
import json
import math
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

from translator.data.file_signatures import HEAD, other_content
from translator.inference.details import Details
from translator.inference.translation import Given, Request, Translation, decoded
from translator.runtime.errors import UserError

Format = Literal["text", "jsonl"]
# Bytes read at once: some hundred lines of a file, which make full batches, and few enough to answer soon.
READ_BYTES = 1 << 16
# The most bytes of a line. One more of a longer line is kept, to refuse it.
LONGEST = 1 << 24
TOO_LONG = f"longer than {LONGEST:,} bytes"
# Fields of an object that an answer writes: those that an earlier answer wrote are not taken for the asker's.
ANSWERS = {"translation", "score", "n_best", "tokens", "alignment", "refused", "warnings"}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of input: what is to be translated, or why it cannot be, and what else its object held."""

    request: Request
    trouble: str = ""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: int = 0  # bytes


def format_of(name: str | None, chosen: Format | Literal["auto"]) -> Format:
    """The format chosen, or that of a file's name: jsonl where it ends so, packed or not."""
    if chosen != "auto":
        return chosen
    return "jsonl" if name is not None and name.removesuffix(".gz").endswith(".jsonl") else "text"


def parse(line: bytes, form: Format) -> Line:
    """A text as it is; an object {"source": ..., "prefix": ..., "required": [...]}, of which the last two may be missing."""
    if len(line) > LONGEST:
        return Line(Request(""), f"{TOO_LONG}; not translated", size=len(line) + 1)
    return dataclasses.replace(_parse(line, form), size=len(line) + 1)


def _parse(line: bytes, form: Format) -> Line:
    if form == "text":
        return Line(Request(line))
    try:
        fields = {name: value for name, value in _object(line).items() if name not in ANSWERS}
    except ValueError as error:
        return Line(Request(""), f"{error}; not translated")
    if not isinstance(fields.get("source"), str):
        return Line(Request(""), 'no text in "source"; not translated', fields)
    prefix, required = fields.get("prefix"), fields.get("required")  # null, as a table's export has it, is nothing
    required = [] if required is None else required
    if prefix is not None and not isinstance(prefix, str):
        return Line(Request(""), '"prefix" is no text; not translated', fields)
    if not isinstance(required, list) or not all(isinstance(phrase, str) for phrase in required):
        return Line(Request(""), '"required" is no list of texts; not translated', fields)
    return Line(Request(fields["source"], prefix, tuple(required)), "", fields)


def translation_of(line: bytes, form: Format) -> Given:
    """Read a line of translations to score: a text, or an object's "translation", with its "tokens" if it has some.

    ValueError where it holds no text.
    """
    if len(line) > LONGEST:
        raise ValueError(TOO_LONG)
    fields = {"translation": decoded(line)} if form == "text" else _object(line)
    text = fields.get("translation")
    if not isinstance(text, str):
        raise ValueError('no text in "translation"')
    return Given(decoded(text), _pieces(fields.get("tokens")))


def _pieces(tokens: Any) -> tuple[str, ...]:
    """The pieces of "tokens" as `answer` writes them; none of anything else."""
    listed = tokens if isinstance(tokens, list) else []
    pieces = [str(token["piece"]) for token in listed if isinstance(token, dict) and isinstance(token.get("piece"), str)]
    return tuple(pieces) if len(pieces) == len(listed) else ()


def _object(line: bytes) -> dict[str, Any]:
    """ValueError, which says why, for what is no JSON object with each name once."""
    try:
        fields = json.loads(line, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name stands there twice")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def answer(line: Line, translation: Translation, details: Details | None, form: Format) -> bytes:
    """Write the n best translations tab-separated; or the line's object with them, scores, and details if they were asked for.

    All objects have the same fields: of a line without a translation, score is null and the lists are empty.
    """
    if form == "text":
        return ("\t".join(text.replace("\t", " ") for text in translation.texts) + "\n").encode()
    found = [
        {"translation": text, "score": hypothesis.score, "log_probability": hypothesis.log_probability}
        for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=False)]
    return as_json(_asked(line) | {
        "translation": translation.text, "score": found[0]["score"] if found else None, "n_best": found,
        "refused": line.trouble or translation.refused or None, "warnings": translation.warnings,
        **(_of_details(details) if details else {})})


def score_answer(line: Line, translation: str, details: Details | None, trouble: str, form: Format) -> bytes:
    """Write what a given translation is worth: its score, nothing where it has none; or an object with its details."""
    if form == "text":
        return f"{details.score:.6f}\n".encode() if details else b"\n"
    return as_json(_asked(line) | {
        "translation": translation, "score": details.score if details else None, "refused": trouble or None,
        **_of_details(details or Details())})


def _asked(line: Line) -> dict[str, Any]:
    source = line.request.text
    return line.fields or {"source": source.decode(errors="replace") if isinstance(source, bytes) else source}


def notices(line: Line, translation: Translation) -> Iterator[str]:
    """Yield what a person should know of a line."""
    if line.trouble or translation.refused:
        yield line.trouble or translation.refused
    yield from translation.warnings
    if translation.hit_limit:
        yield "the translation ended only because it had reached the longest length allowed"


def _of_details(details: Details) -> dict[str, Any]:
    """The fields that tell a translation token by token."""
    return {
        "tokens": [
            {"piece": piece, "log_probability": value}
            for piece, value in zip(details.pieces, details.log_probabilities, strict=True)],
        "alignment": " ".join(f"{source}-{target}" for source, target in details.alignment)}


def as_json(fields: dict[str, Any]) -> bytes:
    """An object as a line."""
    try:
        return (json.dumps(fields, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can spell
        return (json.dumps(fields) + "\n").encode()


def arriving_lines(file: io.BufferedReader, name: str | None, option: str = "input") -> Iterator[list[bytes]]:
    """The lines that each read brings: of a file many, of a terminal or a slow pipe those just written. Nobody waits.

    As bytes: a line that is not UTF-8 is one line's trouble, not the file's. Only line feeds separate lines.
    """
    mark = codecs.BOM_UTF8  # that Windows puts before the first
    rest: list[bytes] = []  # the pieces of a line whose end has not come yet
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


def open_input(name: str | None, option: str = "input") -> AbstractContextManager[io.BufferedReader]:
    """A file, unpacked if its name ends in .gz; stdin without a name. `option`: which names it."""
    if name is None:
        return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))
    if Path(name).is_dir():
        raise UserError(f"{option}={name}: is a folder; name a file")
    if not Path(name).exists():
        raise UserError(f"{option}={name}: no such file")
    if name.endswith(".gz"):
        return cast(io.BufferedReader, gzip.open(name))
    if Path(name).is_file():  # from a pipe nothing must be taken
        with Path(name).open("rb") as file:
            if words := other_content(file.read(HEAD)):
                raise UserError(f"{option}={name}: {words}")
    return Path(name).open("rb")
