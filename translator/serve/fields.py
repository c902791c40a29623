"""The fields of requests: JSON, a form, an address, or a form with a file."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request, UploadFile
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails
from starlette.datastructures import ImmutableMultiDict
from starlette.types import Message

from translator.inference.terminology import Terminology

MOST_FIELDS = 1000  # of a form
TYPES = {
    "string_type": "must be text", "int_parsing": "must be a whole number", "int_type": "must be a whole number",
    "int_from_float": "must be a whole number", "dict_type": "must be an object, or lines of a term, a tab and its translation"}


def _require_unicode(text: str) -> str:
    text.encode()  # half of a surrogate pair, which JSON's escapes can spell, cannot be answered
    return text


def _read_terms(value: Any) -> Any:
    """Return the pairs of lines such as `term<TAB>translation`, the form that a file of terms has; others unchanged."""
    return Terminology.parse(value).pairs if isinstance(value, str) else value


Unicode = Annotated[str, AfterValidator(_require_unicode)]
Term = Annotated[Unicode, Field(min_length=1, pattern=r"\S")]
Language = Annotated[Unicode, Field(description="Language code, as /languages lists it", examples=["en"])]


class Fields(BaseModel):
    """Fields of every request."""

    api_key: Annotated[Unicode, Field(description="API key, where the server requires one")] = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take an empty field for a missing one, as LibreTranslate does."""
        return {name: value for name, value in values.items() if value not in (None, "", [])}


class Detection(Fields):
    """The fields of /detect."""

    q: Annotated[Unicode, Field(description="Text")]


class Translation(Fields):
    """The fields of /translate, which /details has too, except other formats than text."""

    q: Annotated[Unicode | list[Unicode], Field(description="Text, or a list of texts")]
    source: Annotated[Language, Field(description="Language code of the text; auto: detect it")]
    target: Annotated[Language, Field(description="Language code of the translation")]
    format: Annotated[Unicode, Field(description="text, or html to keep tags")] = "text"
    alternatives: Annotated[int, Field(ge=0, description="Further translations to return")] = 0
    prefix: Annotated[
        Unicode | list[Unicode],
        Field(description="Beginning of the translation, or a list with one for each text")
    ] = ""
    terminology: Annotated[
        dict[Term, Term], BeforeValidator(_read_terms),
        Field(description="Translations that terms must have: an object, or lines of a term, a tab and its translation")
    ] = {}

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q

    @property
    def prefixes(self) -> list[str]:
        """The prefix of each text."""
        return [self.prefix] * len(self.texts) if isinstance(self.prefix, str) else self.prefix


class Details(Translation):
    """The fields of /details."""

    format: SkipJsonSchema[Unicode] = "text"  # the only one
    others: Annotated[int, Field(ge=0, le=20, description="Likeliest other tokens to return at each place")] = 0


class FileTranslation(Fields):
    """The fields of /translate_file."""

    file: Annotated[UploadFile, Field(description="File, as multipart/form-data")]
    source: Annotated[Language, Field(description="Language code of the file; auto: detect it")]
    target: Annotated[Language, Field(description="Language code of the translation")]


FieldsT = TypeVar("FieldsT", bound=Fields)


async def read_fields(request: Request, model: type[FieldsT], max_bytes: int) -> FieldsT:
    """Read the fields of a request. Raises HTTPException, in LibreTranslate's words, if they are wrong or too large."""
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await request.receive()
        read += len(message.get("body", b""))
        if read > max_bytes:
            raise HTTPException(413, f"Invalid request: its body is larger than {max_bytes:,} bytes", {"Connection": "close"})
        return message

    try:
        return model.model_validate(await _values(Request(request.scope, bounded), max_bytes))
    except ValidationError as error:
        raise HTTPException(400, f"Invalid request: {_problem(error.errors()[0])}") from error


def _problem(error: ErrorDetails) -> str:
    """Say what is wrong with a field, in the terms of JSON rather than of Python."""
    name, kind = error["loc"][0], error["type"]
    if kind == "missing":
        return f"missing {name} parameter (absent or empty)"
    if kind == "value_error":
        return f"{name} parameter: {error['ctx']['error']}"
    return f"{name} parameter: " + TYPES.get(kind, re.sub(r"^\w+ should ", "must ", error["msg"]))


async def _values(request: Request, max_bytes: int) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        values = None
        with suppress(ValueError, RecursionError):
            values = await request.json()
        if not isinstance(values, dict):
            raise HTTPException(400, "Invalid JSON format")
        return values
    values = {}
    urlencoded = kind == "application/x-www-form-urlencoded"
    form = await (_urlencoded(request) if urlencoded else request.form(max_part_size=max_bytes))
    for given in (request.query_params, form):
        values |= dict(given)
        for name in ("q", "prefix"):
            if len(texts := given.getlist(name)) > 1:
                values[name] = texts
    return values


async def _urlencoded(request: Request) -> ImmutableMultiDict[str, Any]:
    """Read a form. Starlette takes bytes that are not percent-encoded for Latin-1; `curl -d` sends UTF-8."""
    text = (await request.body()).decode(errors="replace")
    try:
        return ImmutableMultiDict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise HTTPException(400, f"Invalid request: more than {MOST_FIELDS:,} fields") from error
