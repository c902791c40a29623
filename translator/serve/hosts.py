"""Protection against DNS rebinding: a request must name this server as its Host."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KnownHosts:
    """Refuse requests for host names that are not the server's.

    A hostile site can have its name resolved to this machine's address; its page then passes for the server's own
    (https://en.wikipedia.org/wiki/DNS_rebinding). The Host header still holds that name, not an address or `localhost`.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        """`names`: accepted host names besides addresses, `localhost` and this machine's own name; `*`: any."""
        self._app = app
        own = socket.gethostname()
        self._names = {name.lower() for name in (*names, "localhost", own, f"{own}.local")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or "*" in self._names or self._knows(name := _name_of(host)):  # every browser names a host
            await self._app(scope, receive, send)
            return
        message = f"Host {name!r}: not a name of this server. If it should be, start it with hosts=[{name}]"
        await JSONResponse({"error": message}, 403)(scope, receive, send)

    def _knows(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _name_of(host: str) -> str:
    """The host's name or address without its port; of what is neither, all of it."""
    try:
        return (urlsplit(f"//{host}").hostname or host).removesuffix(".")
    except ValueError:
        return host
