"""A loopback copy of the servers of OPUS and mtdata's corpora, by host, and small indexes in their formats."""

from __future__ import annotations

import io
import pickle
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

OPUS = "/object.pouta.csc.fi/OPUS-{}/{}/moses/{}-{}.txt.zip"
README = "Corpus Name: Tatoeba\nPackage: Tatoeba in Moses format\nLicense: CC-BY 2.0 FR\n\nCite its authors.\n"


class CorpusServer(ThreadingHTTPServer):
    """Files by path. `requests` holds what was asked, with its Range; `cut` breaks off answers after this many bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.cut: int | None = None
        self.ranges = True
        self.hang = False  # instead of breaking off

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: CorpusServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range") if self.server.ranges else None
        self.server.requests.append((self.path, self.headers.get("Range")))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][:self.server.cut])
        while self.server.hang:
            self.wfile.flush()
            time.sleep(0.02)


@contextmanager
def corpus_server() -> Iterator[CorpusServer]:
    server = CorpusServer()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.hang = False
        server.shutdown()
        server.server_close()


def moses_zip(name: str, texts: dict[str, list[str]]) -> bytes:
    """An archive as OPUS makes them."""
    packed, pair = io.BytesIO(), "-".join(sorted(texts))
    with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
        archive.writestr("README", README)
        archive.writestr("LICENSE", "The licence of a test.\n")
        for language, lines in texts.items():
            archive.writestr(f"{name}.{pair}.{language}", "".join(f"{line}\n" for line in lines))
        archive.writestr(f"{name}.{pair}.ids", "1\t2\n")
    return packed.getvalue()


def write_opus_index(downloads: Path, rows: list[tuple[str, str, str, str, str]]) -> None:
    """The database of opustools where the real one would be unpacked. Rows: corpus, version, languages, whether latest."""
    downloads.mkdir(parents=True, exist_ok=True)
    columns = ("corpus", "version", "source", "target", "latest", "url", "preprocessing", "size", "alignment_pairs",
               "documents", "source_tokens", "target_tokens", "id")
    with sqlite3.connect(downloads / f".opustools-{version('opustools')}.db") as database:
        database.execute(f"CREATE TABLE opusfile ({', '.join(columns)})")
        for corpus, release, source, target, latest in rows:
            url = f"https:/{OPUS.format(corpus, release, source, target)}"
            values = (corpus, release, source, target, latest, url, "moses", 9905, 313176, "", "", "", 1)
            database.execute(f"INSERT INTO opusfile VALUES ({', '.join('?' * len(columns))})", values)
    database.close()


def write_mtdata_index(folder: Path, entries: list[Any]) -> None:
    """The index of mtdata as it caches one in the folder that MTDATA names. `mtdata.index` must not be imported yet."""
    module = ModuleType("mtdata.index")
    index_class = type("Index", (), {"__module__": "mtdata.index"})
    module.Index = index_class  # type: ignore[attr-defined]
    index = index_class()
    index.entries = {entry.did: entry for entry in entries}
    sys.modules["mtdata.index"] = module
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"mtdata.index.{version('mtdata')}.pkl").write_bytes(pickle.dumps(index))
    finally:
        del sys.modules["mtdata.index"]
