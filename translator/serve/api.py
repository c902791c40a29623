"""LibreTranslate's API over HTTP: the fields of requests, their answers, and the application that routes them."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import mimetypes
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Message

from translator.config.commands import ServeConfig
from translator.runtime.errors import UserError
from translator.serve.batcher import Full
from translator.serve.connections import known_hosts, known_origins
from translator.serve.service import Answers, Service, Text, Unanswerable, served_code, texts_of, untouched, warnings_of
from translator.text.html import parse_html
from translator.text.language import name_of

TYPING_PAUSE = 250  # milliseconds without a key after which the page asks for a translation
# Confidence, in percent, from which a text counts as written in the target language already: with it no sentence of Tatoeba's
# English test split counts as German, and 1,647 of the 1,663 German ones do.
SURE = 20
# A character takes at most this many bytes, as two \uXXXX of JSON or four %XX of a form; and there are the other fields.
CHARACTER_BYTES, OTHER_BYTES = 12, 1 << 16
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

Route = Callable[[Request], Awaitable[Response]]


def _require_unicode(text: str) -> str:
    text.encode()  # half of a surrogate pair, which JSON's escapes can spell, cannot be answered
    return text


Unicode = Annotated[str, AfterValidator(_require_unicode)]


class Fields(BaseModel):
    """Fields of every request."""

    api_key: Unicode = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take an empty field for a missing one, as LibreTranslate does."""
        return {name: value for name, value in values.items() if value not in (None, "", [])}


class Detection(Fields):
    """The fields of /detect."""

    q: Unicode


class Translation(Fields):
    """The fields of /translate and /details."""

    q: Unicode | list[Unicode]
    source: Unicode
    target: Unicode
    format: Unicode = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0

    @property
    def texts(self) -> list[str]:
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
        values = None
        with suppress(ValueError, RecursionError):
            values = await request.json()
        if not isinstance(values, dict):
            raise HTTPException(400, "Invalid JSON format")
        return values
    values = {}
    for given in (request.query_params, await request.form(max_part_size=max_bytes)):
        values |= dict(given)
        if len(texts := given.getlist("q")) > 1:
            values["q"] = texts
    return values


class Api:
    """LibreTranslate's answers and error messages; `details` and `health` are additions."""

    def __init__(self, service: Service, config: ServeConfig, keys: Sequence[str] = ()) -> None:
        self.service = service
        self.config = config
        self.keys = [key.encode() for key in keys]  # if there are any, requests must bring one
        self.max_alternatives = config.search.most_outputs - 1

    async def translate(self, fields: Translation) -> dict[str, Any]:
        """Answer /translate: lists if `q` is a list, HTML if it is HTML."""
        texts, answers, detected = await self._translate(fields, explained=False)
        ranked = [
            texts_of(text, lines, 1 + fields.alternatives, self.config.search)
            for text, lines in zip(texts, answers, strict=True)]
        by_text: dict[str, list[Any]] = {"translatedText": [texts[0] for texts in ranked]}
        if fields.alternatives:
            by_text["alternatives"] = [texts[1:] for texts in ranked]
        if detected:
            by_text["detectedLanguage"] = detected
        if any(warnings := list(map(warnings_of, answers))):
            by_text["warnings"] = warnings
        return by_text if isinstance(fields.q, list) else {name: values[0] for name, values in by_text.items()}

    async def details(self, fields: Translation) -> dict[str, Any]:
        """Answer /details: each text's lines, their sentences, token by token."""
        texts, answers, detected = await self._translate(fields, explained=True)
        for text, lines in zip(texts, answers, strict=True):
            texts_of(text, lines, 1, self.config.search)  # raises if a line has no translation
        explained = [[[answer.explanation for answer in line] for line in lines] for lines in answers]
        return {"texts": explained} | ({"detectedLanguage": detected} if detected else {})

    async def detect(self, fields: Detection) -> list[dict[str, Any]]:
        """Answer /detect."""
        self._require_key(fields)
        self._require_limits([fields.q])
        return [language for language in await self.service.detect(fields.q) if language["confidence"]]

    async def languages(self) -> list[dict[str, Any]]:
        """Answer /languages: every language, with those into which it is translated."""
        pairs = self.service.translators
        return [{"code": code, "name": name_of(code), "targets": [target for source, target in pairs if source == code]}
                for code in dict.fromkeys(itertools.chain.from_iterable(pairs))]

    async def settings(self) -> dict[str, Any]:
        """Answer /frontend/settings."""
        source, target = ({"code": code, "name": name_of(code)} for code in next(iter(self.service.translators)))
        return {
            "charLimit": self.config.max_characters, "frontendTimeout": TYPING_PAUSE, "apiKeys": bool(self.keys),
            "keyRequired": bool(self.keys), "suggestions": False, "filesTranslation": False, "supportedFilesFormat": [],
            "alternativesLimit": self.max_alternatives, "language": {"source": source, "target": target}}

    async def health(self) -> dict[str, Any]:
        """Answer /health."""
        batcher = self.service.batcher
        return {
            "status": "ok", "waiting": batcher.waiting, "sentences": batcher.sentences_done, "batches": batcher.batches_done}

    async def _translate(
        self, fields: Translation, *, explained: bool
    ) -> tuple[Sequence[Text], list[Answers], list[dict[str, Any]] | None]:
        """Return the texts, the answers to each, and the languages detected if `source` is auto."""
        self._require_key(fields)
        self._require_limits(fields.texts)
        if fields.alternatives > self.max_alternatives:
            raise Unanswerable(f"Invalid request: alternatives parameter must be <= {self.max_alternatives}")
        if fields.format not in (("text",) if explained else ("text", "html")):
            raise Unanswerable(f"{fields.format} format is not supported")
        texts: Sequence[Text] = list(map(parse_html, fields.texts)) if fields.format == "html" else fields.texts
        source, target = (served_code(code, self.service.codes) for code in (fields.source, fields.target))
        detected, sources = None, [source] * len(texts)
        if source == "auto":
            detected = [await self._language_of(text if isinstance(text, str) else text.plain, target) for text in texts]
            sources = [language["language"] for language in detected]
        foreign = [i for i, language in enumerate(sources) if detected is None or language != target]
        translated = await self.service.translate(
            [texts[i] for i in foreign], [sources[i] for i in foreign], target, 1 + fields.alternatives, explained)
        answers = dict(zip(foreign, translated, strict=True))
        return texts, [answers.get(i) or untouched(text) for i, text in enumerate(texts)], detected

    async def _language_of(self, text: str, target: str) -> dict[str, Any]:
        """Return the target if the text clearly is in it, else the likeliest of its sources, or the only one."""
        sources = [source for source, other in self.service.translators if other == target]
        if not sources:
            raise Unanswerable(f"{target} is not supported")
        ranked = await self.service.detect(text)
        if ranked[0]["language"] == target and ranked[0]["confidence"] >= SURE:
            return ranked[0]
        for language in ranked:
            if language["language"] in sources:
                return language
        if len(sources) > 1:
            raise Unanswerable(f"the language cannot be detected: name the source, one of {', '.join(sources)}")
        return {"language": sources[0], "confidence": 0.0}

    def _require_key(self, fields: Fields) -> None:
        if self.keys and not fields.api_key:
            raise HTTPException(400, "Please contact the server operator to get an API key")
        if self.keys and not any(hmac.compare_digest(fields.api_key.encode(), key) for key in self.keys):
            raise HTTPException(403, "Invalid API key")

    def _require_limits(self, texts: Sequence[str]) -> None:
        for size, limit in ((len(texts), self.config.max_texts), (sum(map(len, texts)), self.config.max_characters)):
            if size > limit:
                raise Unanswerable(f"Invalid request: request ({size}) exceeds text limit ({limit})")


def create_app(api: Api) -> FastAPI:
    """Build the application that uvicorn runs."""
    app = FastAPI(openapi_url=None, dependencies=[Depends(known_hosts((api.config.host, *api.config.hosts)))])
    posts = {
        "/translate": _answering(api, Translation, api.translate), "/details": _answering(api, Translation, api.details),
        "/detect": _answering(api, Detection, api.detect)}
    for path, route in posts.items():
        app.add_api_route(path, route, methods=["POST"], dependencies=[Depends(known_origins(api.config.origins))])
    for path in ("/suggest", "/translate_file"):
        app.add_api_route(path, _refuse, methods=["POST"])
    for path, answer in {"/languages": api.languages, "/frontend/settings": api.settings, "/health": api.health}.items():
        app.add_api_route(path, answer, methods=["GET"])
    for file in (Path(__file__).parent / "page").iterdir():
        for path in ("/", f"/{file.name}") if file.name == "index.html" else (f"/{file.name}",):
            app.add_api_route(path, _serving(file), methods=["GET", "HEAD"])
    _answer_errors(app, api.config.timeout)
    if api.config.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=api.config.origins, allow_methods=["GET", "POST"], allow_headers=["Content-Type"])
    return app


def _answer_errors(app: FastAPI, timeout: float) -> None:
    """Give every error a status and one line: {"error": "..."}."""
    def answer(error: type[Exception], status: int, message: str = "{error}", **headers: str) -> None:
        async def respond(request: Request, error: Exception) -> Response:
            return JSONResponse({"error": message.format(error=error)}, status, headers)

        app.add_exception_handler(error, respond)

    answer(Unanswerable, 400)
    answer(ClientDisconnect, 400, "the client has left")
    answer(Full, 503, "Slowdown: too many texts wait already", **{"Retry-After": "2"})
    answer(TimeoutError, 504, f"Cannot translate text: it took longer than {timeout:g} seconds")
    answer(UserError, 500, "Cannot translate text: {error}")
    answer(Exception, 500, "Cannot translate text: the server's log says why")

    @app.exception_handler(StarletteHTTPException)
    async def respond(request: Request, error: StarletteHTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _refuse() -> None:
    raise HTTPException(403, "Suggestions and translation of files are disabled on this server.")


def _answering(api: Api, model: type[FieldsT], work: Callable[[FieldsT], Coroutine[Any, Any, Any]]) -> Route:
    """Return a route that answers the request's fields by `work`, unless that takes too long or the client leaves."""
    max_bytes = CHARACTER_BYTES * api.config.max_characters + OTHER_BYTES

    async def answer(request: Request) -> Response:
        async with asyncio.timeout(api.config.timeout):
            fields = await read_fields(request, model, max_bytes)
            task, gone = asyncio.ensure_future(work(fields)), asyncio.ensure_future(_disconnected(request))
            try:
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    raise ClientDisconnect
                return JSONResponse(task.result())
            finally:
                task.cancel()
                gone.cancel()

    return answer


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _serving(file: Path) -> Route:
    """Return a route for a file of the page, kept in memory: it needs no file descriptor."""
    content, (media_type, _) = file.read_bytes(), mimetypes.guess_type(file.name)

    async def serve(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=PAGE_HEADERS)

    return serve
