"""A server of ours, in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

OURS = (sys.executable, ROOT / "scripts" / "serve.py")


class Server:
    """scripts/serve.py, or another command that serves, running."""

    def __init__(self, log: Path, *options: str, command: Sequence[str | Path] = OURS) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen([*command, "port=0", "device=cpu", *options], stderr=file, cwd=ROOT)
        while not (found := re.search(r"http://([\d.]+):(\d+)/", self.said)):
            assert self.process.poll() is None, self.said
            time.sleep(0.05)
        self.host, self.port = found[1], int(found[2])
        self.url = found[0].rstrip("/")

    @property
    def said(self) -> str:
        return self.log.read_text()

    def post(self, path: str, fields: Any, kind: str = "application/json", **headers: str) -> tuple[int, Any]:
        """The status and the answer; `fields` as JSON unless they are bytes."""
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": kind} | headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as response:
            return json.load(response)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextlib.contextmanager
def serving(log: Path, *options: str) -> Iterator[Server]:
    server = Server(log, *options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
