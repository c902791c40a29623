"""The routes, and what HTTP makes of answers and errors."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, Response

from translator.runtime.errors import UserError
from translator.serve.api import Api
from translator.serve.batcher import Full
from translator.serve.fields import Detection, Fields, Translation, read_fields
from translator.serve.hosts import KnownHosts
from translator.serve.service import Unanswerable

# A character takes at most this many bytes, as two \uXXXX of JSON or four %XX of a form; and there are the other fields.
BYTES_OF_CHARACTER, BYTES_BESIDES = 12, 1 << 16
# Seconds after which one who was sent away may come again.
RETRY_AFTER = 2
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


def create_app(api: Api) -> FastAPI:
    """The application that uvicorn runs."""
    app = FastAPI(openapi_url=None)
    app.add_api_route("/translate", _answering(api, Translation, api.translate), methods=["POST"])
    app.add_api_route("/details", _answering(api, Translation, api.details), methods=["POST"])
    app.add_api_route("/detect", _answering(api, Detection, api.detect), methods=["POST"])

    @app.get("/languages")
    async def languages() -> Response:
        return JSONResponse(api.service.languages)

    @app.get("/frontend/settings")
    async def settings() -> Response:
        return JSONResponse(api.settings)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse(api.health)

    @app.post("/suggest")
    async def suggest() -> Response:
        raise HTTPException(403, "Suggestions are disabled on this server.")

    @app.post("/translate_file")
    async def translate_file() -> Response:
        raise HTTPException(403, "Files translation are disabled on this server.")

    @app.exception_handler(StarletteHTTPException)
    async def tell(request: Request, error: StarletteHTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def tell_of_bug(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "Cannot translate text: the server's log says why"}, 500)

    for file in (Path(__file__).parent / "page").iterdir():
        for path in ("/", f"/{file.name}") if file.name == "index.html" else (f"/{file.name}",):
            app.add_api_route(path, _serving(file), methods=["GET", "HEAD"])
    if api.config.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=api.config.origins, allow_methods=["GET", "POST"], allow_headers=["Content-Type"])
    app.add_middleware(KnownHosts, names=(api.config.host, *api.config.hosts))
    return app


def _serving(file: Path) -> Callable[[Request], Awaitable[Response]]:
    """A route for a file of the page, which may load nothing from elsewhere; kept in memory, without a file descriptor."""
    content, (media_type, _) = file.read_bytes(), mimetypes.guess_type(file.name)
    headers = PAGE_HEADERS | {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return serve


def _answering(
    api: Api, form: type[Fields], work: Callable[[Fields], Coroutine[Any, Any, Any]]
) -> Callable[[Request], Awaitable[Response]]:
    """A route: the work's result as JSON, or why there is none."""
    max_bytes = BYTES_OF_CHARACTER * api.config.max_characters + BYTES_BESIDES

    async def answer(request: Request) -> Response:
        _require_site(request, api.config.origins)
        try:
            async with asyncio.timeout(api.config.timeout):
                fields = await read_fields(request, form, max_bytes)
                return JSONResponse(await _unless_left(request, work(fields)))
        except TimeoutError as error:
            raise HTTPException(504, f"Cannot translate text: it took longer than {api.config.timeout:g} seconds") from error
        except Unanswerable as error:
            raise HTTPException(400, str(error)) from error
        except Full as error:
            raise HTTPException(503, "Slowdown: too many texts wait already", {"Retry-After": str(RETRY_AFTER)}) from error
        except UserError as error:
            raise HTTPException(500, f"Cannot translate text: {error}") from error

    return answer


def _require_site(request: Request, origins: Sequence[str]) -> None:
    """Other sites' pages could not read an answer, but have their visitors' browsers keep the server busy: forms need no leave.

    Browsers tell from where they were sent (https://www.w3.org/TR/fetch-metadata), but the origin alone to another machine
    without https; other clients tell nothing.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if site is None:
        from_here = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    else:
        from_here = site in ("none", "same-origin")
    if not from_here and "*" not in origins and origin not in origins:
        raise HTTPException(403, "Pages of other web sites may not ask: the server's `origins` does not name this one")


async def _unless_left(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of some work, which is dropped when the client leaves."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Unanswerable("the client has left")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
