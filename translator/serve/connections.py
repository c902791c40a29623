"""Limits on connections: how many there are, and how long a client may keep one without sending a request."""

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

# Seconds for the headers of a request, and for taking each part of a large answer; as long, a connection may be idle.
PATIENCE = 10
# Connections that the kernel holds ready, and that asyncio accepts at once.
BACKLOG = 128
# File descriptors left for what opens files now and then.
SPARE_FILES = 16
FEWEST_CONNECTIONS = 8
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Seconds from one line about a lack of file descriptors to the next.
REPORT_EVERY = 60
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 43\r\nRetry-After: 2\r\n"
    b'Connection: close\r\n\r\n{"error":"Slowdown: too many connections"}\n')


class Connection(H11Protocol):
    """HTTP/1.1 for clients that may be slow or hostile.

    uvicorn only drops a connection that is idle after an answer. This drops any that waits for its client: for the headers of
    a request, for a body that nobody reads any more, or to take an answer. The body of a request that is being answered has
    the server's `timeout`.
    """

    _deadline: asyncio.TimerHandle | None = None
    _untaken = 0  # bytes of answers when the deadline was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)
            transport.write(REFUSAL)
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the deadline while the client has to act, and none while the server has."""
        waits = self.cycle is None or self.cycle.response_complete or self.flow.write_paused
        if waits and self._deadline is None:
            self._untaken = self.transport.get_write_buffer_size()
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self._expire)
        elif not waits and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if 0 < self.transport.get_write_buffer_size() < self._untaken:  # a slow reader, but one who reads
            self._watch()
        else:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn with limits on connections, and one line in the log where file descriptors run out."""

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
        """Log what asyncio could not do: where it is short of file descriptors, it would say so thousands of times a second."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_FILES):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._report_from:
            self._report_from = time.monotonic() + REPORT_EVERY
            log(f"warning: a connection has to wait: {error.strerror}. Raise the limit of open files (ulimit -n), or lower "
                "max_connections.")


def within_open_files(most_connections: int) -> tuple[int, int]:
    """Return how many connections may be open, and how many are accepted at once, without running out of file descriptors.

    Raises UserError where the limit of open files leaves too few.
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
        raise UserError(f"open files: their limit ({soft}) leaves none for connections. Raise it: ulimit -n 1024")
    if most < most_connections:
        log(f"warning: max_connections={most_connections}: the limit of open files ({soft}) allows {most}. "
            "Raise it (ulimit -n).")
    return most, min(BACKLOG, free - most)
