"""The HTTP application: routes, who may ask, and what errors become."""

from __future__ import annotations

import asyncio
import ipaddress
import mimetypes
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from translator.runtime.errors import UserError
from translator.serve.api import Api, Detection, FieldsT, Translation, read_fields
from translator.serve.batcher import Full
from translator.serve.service import Unanswerable

# A character takes at most this many bytes, as two \uXXXX of JSON or four %XX of a form; and there are the other fields.
CHARACTER_BYTES, OTHER_BYTES = 12, 1 << 16
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

Check = Callable[[Request], Awaitable[None]]
Route = Callable[[Request], Awaitable[Response]]


def create_app(api: Api) -> FastAPI:
    """Build the application that uvicorn runs."""
    app = FastAPI(openapi_url=None, dependencies=[Depends(_known_hosts((api.config.host, *api.config.hosts)))])
    posts = {
        "/translate": _answering(api, Translation, api.translate), "/details": _answering(api, Translation, api.details),
        "/detect": _answering(api, Detection, api.detect)}
    for path, route in posts.items():
        app.add_api_route(path, route, methods=["POST"], dependencies=[Depends(_known_origins(api.config.origins))])
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


def _known_hosts(names: Sequence[str]) -> Check:
    """Return a check that requests name this server as their Host: `names`, an address, or this machine; `*`: any.

    A hostile site can have its name resolved to this machine's address; its page then passes for the server's own
    (https://en.wikipedia.org/wiki/DNS_rebinding). Starlette's TrustedHostMiddleware knows no addresses.
    """
    own = socket.gethostname()
    known = {name.lower() for name in (*names, "localhost", own, f"{own}.local")}

    async def check(request: Request) -> None:
        host = request.headers.get("host")
        if host is None or "*" in known:  # every browser names a host
            return
        name = host
        with suppress(ValueError):
            name = (urlsplit(f"//{host}").hostname or host).removesuffix(".")
            ipaddress.ip_address(name)
            return
        if name not in known:
            raise HTTPException(403, f"Host {name!r}: not a name of this server. If it should be, start it with hosts=[{name}]")

    return check


def _known_origins(origins: Sequence[str]) -> Check:
    """Return a check that no page of an unknown site asks: it could not read the answer, but keep the server busy.

    Browsers say where a request is from (https://www.w3.org/TR/fetch-metadata), but only its origin if it goes to another
    machine without https. Other clients say nothing.
    """
    async def check(request: Request) -> None:
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if site is None:
            own = origin is None or urlsplit(origin).netloc == request.headers.get("host")
        else:
            own = site in ("none", "same-origin")
        if not own and "*" not in origins and origin not in origins:
            raise HTTPException(403, "Pages of other web sites may not ask: the server's `origins` does not name this one")

    return check
