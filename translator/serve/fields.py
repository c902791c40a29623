"""The fields of a request, in JSON or as a form, within bounds."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import HTTPException, Request
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Message


def _encodable(text: str) -> str:
    """The text, unless it holds half of a surrogate pair, which JSON's escapes can spell but no answer could repeat."""
    text.encode()
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Keyed(BaseModel):
    """What any request may bring."""

    api_key: Text = ""


class Detection(Keyed):
    """/detect."""

    q: Text


class Translation(Keyed):
    """/translate."""

    q: Text | list[Text]
    source: Text
    target: Text
    format: Text = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


Fields = TypeVar("Fields", bound=Keyed)


async def read_fields(request: Request, form: type[Fields], max_bytes: int) -> Fields:
    """What a request asks for; HTTPException in LibreTranslate's words where it cannot be read."""
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await request.receive()
        read += len(message.get("body", b""))
        if read > max_bytes:
            raise HTTPException(413, f"Invalid request: its body is larger than {max_bytes:,} bytes", {"Connection": "close"})
        return message

    try:
        values = await _values(Request(request.scope, bounded), max_bytes)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "Invalid JSON format") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client has left") from error
    if not isinstance(values, dict):
        raise HTTPException(400, "Invalid JSON format")
    try:
        return form.model_validate({name: value for name, value in values.items() if value not in (None, "", [])})
    except ValidationError as error:
        first = error.errors()[0]
        name = first["loc"][0]
        told = f"missing {name} parameter" if first["type"] == "missing" else f"{name} parameter: {first['msg']}"
        raise HTTPException(400, f"Invalid request: {told}") from error


async def _values(request: Request, max_bytes: int) -> Any:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() == "application/json":
        return await request.json()
    values: dict[str, Any] = {}
    for given in (request.query_params, await request.form(max_part_size=max_bytes)):
        values |= dict(given)
        if len(texts := given.getlist("q")) > 1:
            values["q"] = texts
    return values
