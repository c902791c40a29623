"""Limits on connections: how many are open, and how long a client may do nothing."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from translator.runtime.console import log
from translator.runtime.errors import UserError

# Seconds between two checks on what a client does; as long, a connection may be idle.
PATIENCE = 10
# Connections that the kernel queues, and that asyncio accepts at once.
BACKLOG = 128
# File descriptors kept for files opened now and then.
SPARE_FILES = 16
FEWEST_CONNECTIONS = 8
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Seconds between two log lines about a lack of file descriptors.
REPORT_EVERY = 60
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 43\r\nRetry-After: 2\r\n"
    b'Connection: close\r\n\r\n{"error":"Slowdown: too many connections"}\n')


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
    """uvicorn with limits on connections, and one log line when file descriptors run out."""

    def __init__(self, app: ASGIApp, most_connections: int, *, patience: float = PATIENCE) -> None:
        most, backlog = within_open_files(most_connections)
        super().__init__(uvicorn.Config(
            app, http=Connection, log_level="warning", access_log=False, backlog=backlog, limit_concurrency=most + 1,
            timeout_keep_alive=patience))  # type: ignore[arg-type]  # seconds need not be whole
        self._report_from = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._report)
        await super().startup(sockets)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log asyncio's errors; a lack of file descriptors, which comes thousands of times a second, once a minute."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_FILES):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._report_from:
            self._report_from = time.monotonic() + REPORT_EVERY
            log(f"warning: a connection has to wait: {error.strerror}. Raise the limit of open files (ulimit -n), or lower "
                "max_connections.")


def within_open_files(most_connections: int) -> tuple[int, int]:
    """Return how many connections may be open, and how many are accepted at once, without running out of file descriptors.

    Raises the limit of open files where allowed. Raises UserError if it leaves too few.
    """
    opened = sum(1 for _ in Path("/dev/fd").iterdir()) + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = opened + most_connections + BACKLOG
    if soft < wanted and soft != resource.RLIM_INFINITY:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = (wanted if soft == resource.RLIM_INFINITY else soft) - opened
    most = min(most_connections, free - min(BACKLOG, free // 4))
    if most < min(most_connections, FEWEST_CONNECTIONS):
        raise UserError(f"open files: the limit ({soft}) leaves none for connections. Raise it: ulimit -n 1024")
    if most < most_connections:
        log(f"warning: max_connections={most_connections}: the limit of open files ({soft}) allows {most}. "
            "Raise it (ulimit -n).")
    return most, min(BACKLOG, free - most)
