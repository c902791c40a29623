"""Limits of connections: known hosts and origins, their number, their idle time."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import uvicorn
from fastapi import HTTPException, Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from translator.runtime.console import log
from translator.runtime.errors import UserError

PATIENCE = 10  # seconds between two checks on what a client does; as long, a connection may be idle
BACKLOG = 128  # connections that the kernel queues, and that asyncio accepts at once
OTHER_FILES = BACKLOG + 50  # file descriptors kept for connections that are refused, and for files
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 43\r\nRetry-After: 2\r\n"
    b'Connection: close\r\n\r\n{"error":"Slowdown: too many connections"}\n')
Check = Callable[[Request], Awaitable[None]]


class Connection(H11Protocol):
    """HTTP/1.1 for clients that may be slow or hostile.

    uvicorn only drops a connection that is idle after an answer. This one drops every client that owes something (the headers
    of a request, room for an answer) and does nothing from one check to the next. The body of a request that is being answered
    is limited by the server's `timeout`.
    """

    _check: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)
            transport.write(REFUSAL)
            transport.close()
        self._check_after(self._state())

    def connection_lost(self, exc: Exception | None) -> None:
        self._check.cancel()
        super().connection_lost(exc)

    def _state(self) -> object:
        """Return what changes when the client acts: its requests, and bytes it did not take. None if the server must act."""
        client_owes = self.cycle is None or self.cycle.response_complete or self.flow.write_paused
        return (self.cycle, self.transport.get_write_buffer_size()) if client_owes else None

    def _check_after(self, before: object) -> None:
        self._check = self.loop.call_later(self.timeout_keep_alive, self._drop_if_still, before)

    def _drop_if_still(self, before: object) -> None:
        state = self._state()
        if state is not None and state == before:
            self.transport.abort()
        else:
            self._check_after(state)


class Server(uvicorn.Server):
    """uvicorn with limits on connections."""

    def __init__(self, app: ASGIApp, most_connections: int, *, patience: float = PATIENCE) -> None:
        most = within_open_files(most_connections) + 1
        super().__init__(uvicorn.Config(
            app, http=Connection, log_level="warning", access_log=False, backlog=BACKLOG, limit_concurrency=most,
            timeout_keep_alive=patience))  # type: ignore[arg-type]  # seconds need not be whole


def within_open_files(most_connections: int) -> int:
    """Raise the limit of open files where allowed, and return how many connections fit. Raises UserError if none do."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if soft < most_connections + OTHER_FILES:
        soft = min(hard, most_connections + OTHER_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    most = min(most_connections, soft - OTHER_FILES)
    if most < 1:
        raise UserError(f"open files: the limit ({soft}) leaves none for connections. Raise it: ulimit -n 1024")
    if most < most_connections:
        log(f"warning: max_connections={most_connections}: the limit of files ({soft}) allows {most}. Raise it (ulimit -n).")
    return most


def known_hosts(names: Sequence[str]) -> Check:
    """Return a check that requests name this server as their Host: `names`, an address, or this machine; `*`: any.

    It guards against DNS rebinding. Starlette's TrustedHostMiddleware knows no addresses.
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


def known_origins(origins: Sequence[str]) -> Check:
    """Return a check that no page of an unknown site asks: it could not read the answer, but keep the server busy.

    Browsers say where a request is from (https://www.w3.org/TR/fetch-metadata), but only its origin if it goes to another
    machine without https. Other clients say nothing.
    """
    async def check(request: Request) -> None:
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if site is None:
            own = origin is None or origin.partition("://")[2] == request.headers.get("host")
        else:
            own = site in ("none", "same-origin")
        if not own and "*" not in origins and origin not in origins:
            raise HTTPException(403, "Pages of other web sites may not ask: the server's `origins` does not name this one")

    return check
