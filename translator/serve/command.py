"""The command `make serve`."""

from __future__ import annotations

import signal
import socket
import sys

from translator.config.commands import ServeConfig
from translator.runs.finding import chosen_runs
from translator.runtime.console import log
from translator.runtime.device import tune_cpu
from translator.runtime.errors import UserError
from translator.runtime.typed import installation


def serve_runs(config: ServeConfig) -> None:
    """Serve runs over HTTP until a signal ends it."""
    try:
        from translator.serve.api import Api
        from translator.serve.application import create_app
        from translator.serve.connections import Server
        from translator.serve.keys import Keys
        from translator.serve.service import Service
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed. Install it with `{installation('serve')}`.") from error
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when all who were accepted have their answers
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    keys = Keys.load(config.keys) if config.keys else Keys()
    listening = _listen(config.host, config.port)
    tune_cpu()
    service = Service(config, [str(run) for run in chosen_runs(config.run, config.runs)])
    try:
        server = Server(create_app(Api(service, config, keys)), config.max_connections)
        host, port = listening.getsockname()[:2]
        pairs = ", ".join(f"{source} to {target}" for source, target in service.translators)
        log(f"{pairs}: http://{f'[{host}]' if ':' in host else host}:{port}/  Ctrl-C ends")
        server.run(sockets=[listening])
    finally:
        service.batcher.close()


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; UserError where that fails."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"host={host} port={port}: {reason or error}; name others, as port=0 for any") from error
