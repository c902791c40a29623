"""The fields of a request, in JSON, as a form or in the address."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import HTTPException, Request
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from starlette.types import Message


def _require_unicode(text: str) -> str:
    text.encode()  # half of a surrogate pair, which JSON's escapes can spell, cannot be answered
    return text


Text = Annotated[str, AfterValidator(_require_unicode)]


class Fields(BaseModel):
    """Fields of every request."""

    api_key: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take an empty field for a missing one, as LibreTranslate does."""
        return {name: value for name, value in values.items() if value not in (None, "", [])}


class Detection(Fields):
    """/detect."""

    q: Text


class Translation(Fields):
    """/translate and /details."""

    q: Text | list[Text]
    source: Text
    target: Text
    format: Text = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0

    @property
    def texts(self) -> list[str]:
        """Return `q` as a list."""
        return [self.q] if isinstance(self.q, str) else self.q


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
        first = error.errors()[0]
        name = first["loc"][0]
        problem = f"missing {name} parameter" if first["type"] == "missing" else f"{name} parameter: {first['msg']}"
        raise HTTPException(400, f"Invalid request: {problem}") from error


async def _values(request: Request, max_bytes: int) -> dict[str, Any]:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() == "application/json":
        try:
            values = await request.json()
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "Invalid JSON format") from error
        if not isinstance(values, dict):
            raise HTTPException(400, "Invalid JSON format")
        return values
    values = {}
    for given in (request.query_params, await request.form(max_part_size=max_bytes)):
        values |= dict(given)
        if len(texts := given.getlist("q")) > 1:
            values["q"] = texts
    return values
