"""The routes of the server, and the status and message of each error."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

import translator
from translator.runtime.errors import UserError
from translator.serve.api import Api
from translator.serve.batcher import Full
from translator.serve.connections import known_hosts, known_origins
from translator.serve.downloads import NoRoom
from translator.serve.fields import Details, Detection, FieldsT, FileTranslation, Translation, read_fields
from translator.serve.metrics import Measured
from translator.serve.reference import described, reference_page
from translator.serve.service import Unanswerable

# A character takes at most this many bytes, as two \uXXXX of JSON or four %XX of a form; and there are the other fields.
CHARACTER_BYTES, OTHER_BYTES = 12, 1 << 16
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

# A report is one page, with its style and pictures inside.
REPORT_HEADERS = PAGE_HEADERS | {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
                               "form-action 'none'; frame-ancestors 'none'"}

Route = Callable[[Request], Awaitable[Response]]


def create_app(api: Api) -> FastAPI:
    """Build the application that uvicorn runs."""
    app = FastAPI(
        title="translator", version=translator.__version__, openapi_url=None, docs_url=None, redoc_url=None,
        redirect_slashes=False,  # the address would come from an unchecked Host
        dependencies=[Depends(known_hosts((api.config.host, *api.config.hosts)))])
    _add_posts(app, api)
    gets = {"/languages": api.languages, "/frontend/settings": api.settings, "/health": api.health}
    for path, answer in gets.items():
        app.add_api_route(path, answer, methods=["GET"], **described(path, api))
    app.add_api_route("/metrics", api.measurements, methods=["GET"], **described("/metrics", api))
    app.add_api_route("/download_file/{token}/{name}", _downloading(api), name="download", methods=["GET"],
                      **described("/download_file/{token}/{name}", api))
    _add_pages(app, api)
    _answer_errors(app)
    app.add_middleware(Measured, metrics=api.metrics)
    if api.config.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=api.config.origins, allow_methods=["GET", "POST"], allow_headers=["Content-Type"])
    return app


def _add_posts(app: FastAPI, api: Api) -> None:
    config = api.config
    size = CHARACTER_BYTES * config.max_characters + OTHER_BYTES
    answering = partial(_answering, patience=config.timeout)
    routes = {
        "/translate": answering(Translation, lambda fields, _: api.translate(fields), size, config.timeout),
        "/translate_file": answering(
            FileTranslation, api.translate_file, config.max_file_bytes + OTHER_BYTES, config.file_timeout),
        "/detect": answering(Detection, lambda fields, _: api.detect(fields), size, config.timeout),
        "/details": answering(Details, lambda fields, _: api.details(fields), size, config.timeout)}
    own = [Depends(known_origins(config.origins))]
    for path, route in routes.items():
        app.add_api_route(path, route, methods=["POST"], dependencies=own, **described(path, api))
    app.add_api_route("/suggest", _refuse, methods=["POST"], include_in_schema=False)


def _add_pages(app: FastAPI, api: Api) -> None:
    """Add the page at /, its files, and the reference: /spec for programs, /docs for people."""
    async def spec() -> Response:
        return JSONResponse(app.openapi())

    async def reference(request: Request) -> Response:
        return HTMLResponse(reference_page(app.openapi(), str(request.base_url)), headers=PAGE_HEADERS)

    app.add_api_route("/spec", spec, methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs", reference, methods=["GET", "HEAD"], include_in_schema=False)
    for (source, target), file in api.reports().items():
        app.add_api_route(
            f"/report/{source}/{target}", _serving(file, REPORT_HEADERS), methods=["GET", "HEAD"], include_in_schema=False)
    for file in (Path(__file__).parent / "page").iterdir():
        for path in ("/", f"/{file.name}") if file.name == "index.html" else (f"/{file.name}",):
            app.add_api_route(path, _serving(file), methods=["GET", "HEAD"], include_in_schema=False)


def _answer_errors(app: FastAPI) -> None:
    """Give every error a status and one line: {"error": "..."}."""
    def answer(error: type[Exception], status: int, message: str = "{error}", **headers: str) -> None:
        async def respond(request: Request, error: Exception) -> Response:
            return JSONResponse({"error": message.format(error=error)}, status, headers)

        app.add_exception_handler(error, respond)

    answer(Unanswerable, 400)
    answer(ClientDisconnect, 400, "the client has left")
    answer(Full, 503, "Slowdown: too many texts wait already", **{"Retry-After": "2"})
    answer(NoRoom, 503, "Slowdown: too many translated files wait for their download", **{"Retry-After": "30"})
    answer(UserError, 500, "Cannot translate text: {error}")
    answer(Exception, 500, "Cannot translate text: the server's log says why")

    @app.exception_handler(StarletteHTTPException)
    async def respond(request: Request, error: StarletteHTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _refuse() -> None:
    raise HTTPException(403, "Suggestions are disabled on this server.")


def _answering(
    model: type[FieldsT], work: Callable[[FieldsT, Request], Coroutine[Any, Any, Any]], max_bytes: int, timeout: float,
    patience: float,
) -> Route:
    """Return a route that answers the request's fields by `work`, unless that takes too long or the client leaves.

    `timeout`, `patience`: seconds until it must be answered, and until it must have been received.
    """
    async def answer(request: Request) -> Response:
        try:
            async with asyncio.timeout(timeout):
                async with asyncio.timeout(patience):
                    fields = await read_fields(request, model, max_bytes)
                return JSONResponse(await _while_connected(request, work(fields, request)))
        except TimeoutError as error:
            raise HTTPException(504, f"Cannot translate text: it took longer than {timeout:g} seconds") from error

    return answer


async def _while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`, which is cancelled when the client leaves."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _downloading(api: Api) -> Callable[[str, str], Awaitable[Response]]:
    """Return a route for translated files. A browser saves them, and shows none as a page of this server."""
    async def download(token: str, name: str) -> Response:
        file = api.downloads.take(token)
        if file is None:
            raise HTTPException(404, "Invalid filename: downloaded already, or older than the server keeps files")
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Response(file.content, media_type=kind, headers=PAGE_HEADERS | {
            "Content-Disposition": f"attachment; filename*=utf-8''{quote(file.name)}", "Cache-Control": "no-store"})

    return download


def _serving(file: Path, headers: dict[str, str] = PAGE_HEADERS) -> Route:
    """Return a route for a file, kept in memory: it needs no file descriptor."""
    content, (media_type, _) = file.read_bytes(), mimetypes.guess_type(file.name)

    async def serve(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return serve
