"""A loopback server that speaks as much of the Hugging Face Hub's HTTP API as its unmodified client uses.

That is to load datasets and models, and to upload a model.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

API = re.compile(
    r"/api/(datasets|models)/(?P<repository>[^/]+/[^/]+)"
    r"(/(?P<what>revision|tree|paths-info|preupload|commit)/(?P<revision>[^/]+)/?(?P<path>.*))?")
FILE = re.compile(r"(/datasets)?/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
LARGE = re.compile(r"/(?P<repository>[^/]+/[^/]+)\.git/info/lfs/objects/batch|/large/(?P<oid>[0-9a-f]+)")


@dataclass
class Repository:
    """A dataset's or a model's files by revision, and what is wrong with it."""

    revisions: dict[str, dict[str, bytes]]
    refusal: tuple[int, dict[str, str]] | None = None  # a status and headers in place of any answer
    cut: dict[str, int] = field(default_factory=dict)  # downloads of a file, by path, that break off midway

    def commit(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The hash and the files of a branch's name or of a hash."""
        for name, files in self.revisions.items():
            sha = hashlib.sha1(repr((name, files)).encode()).hexdigest()
            if revision in (name, sha):
                return sha, files
        return None


class Hub(ThreadingHTTPServer):
    """The server; `repositories` by id may be changed while it runs, and `requests` holds what was asked for.

    Who uploads must bring `token`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.token = "hf_test"
        self.large: dict[str, bytes] = {}  # files uploaded on the side, by their SHA-256
        self.requests: list[str] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; the tests read `Hub.requests`."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path}")
        found = API.fullmatch(url.path) or FILE.fullmatch(url.path)
        if self.command != "GET" and self.answer_upload(url.path, found, body):
            return
        if url.netloc or not found:  # asked as a proxy: the dataset viewer, which is another host
            self.reply(404)
        elif (repository := self.server.repositories.get(found["repository"])) is None:
            self.refuse("RepoNotFound")
        elif repository.refusal is not None:
            self.reply(repository.refusal[0], headers=repository.refusal[1])
        elif (commit := repository.commit(unquote(found["revision"] or "main"))) is None:
            self.refuse("RevisionNotFound")
        elif found.re is FILE:
            self.send_file(repository, *commit, unquote(found["path"]))
        else:
            self.send_listing(*commit, found, json.loads(body)["paths"] if body else [])

    def answer_upload(self, path: str, found: re.Match[str] | None, body: bytes) -> bool:
        """Answer what only an upload asks for; whether it was that."""
        what = found and found.re is API and found["what"]
        large = LARGE.fullmatch(path)
        if path not in ("/api/repos/create", "/api/validate-yaml") and what not in ("preupload", "commit") and not large:
            return False
        if large and large["oid"]:
            self.server.large[large["oid"]] = body
            self.reply(200)
        elif self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.reply(401, json.dumps({"error": "Invalid username or password."}).encode())
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.server.repositories.setdefault(name, Repository({"main": {}}))
            self.send_json({"url": f"{self.server.url}/{name}", "id": name})
        elif large:
            self.send_json({"transfer": "basic", "objects": [
                {"oid": o["oid"], "size": o["size"], "actions": {"upload": {"href": f"{self.server.url}/large/{o['oid']}"}}}
                for o in json.loads(body)["objects"]]})
        elif what == "preupload":
            self.send_json({"files": [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".model")) else "regular",
                 "shouldIgnore": False} for file in json.loads(body)["files"]]})
        elif what == "commit":
            assert found
            self.commit(found["repository"], [json.loads(line) for line in body.splitlines()])
        else:
            self.send_json({"warnings": [], "errors": []})
        return True

    def commit(self, name: str, operations: list[dict[str, Any]]) -> None:
        files = self.server.repositories[name].revisions["main"]
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        self.send_json({"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.server.url}/{name}/commit/{'0' * 40}"})

    def send_json(self, value: object) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send_listing(self, sha: str, files: dict[str, bytes], asked: re.Match[str], paths: list[str]) -> None:
        if asked["what"] == "tree":
            listing: object = tree(files, unquote(asked["path"]), recursive="recursive=true" in self.path.lower())
        elif asked["what"] == "paths-info":
            listing = paths_info(files, paths)
        else:
            listing = {
                "_id": "0", "id": asked["repository"], "sha": sha, "siblings": [{"rfilename": name} for name in files],
                "private": False, "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": []}
        if listing is None:
            self.refuse("EntryNotFound")
        else:
            self.send_json(listing)

    def send_file(self, repository: Repository, sha: str, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            self.refuse("EntryNotFound", {"X-Repo-Commit": sha})
            return
        content = files[path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha1(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start:
            headers["Content-Range"] = f"bytes {start[1]}-{len(content) - 1}/{len(content)}"
        content = content[int(start[1]) if start else 0:]
        with self.server.lock:
            cut = self.command == "GET" and repository.cut.get(path, 0) > 0
            if cut:
                repository.cut[path] -= 1
        self.reply(206 if start else 200, content, headers, cut=cut)

    def refuse(self, code: str, headers: dict[str, str] | None = None) -> None:
        self.reply(404, headers={"X-Error-Code": code, "X-Error-Message": code} | (headers or {}))

    def reply(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True


def tree(files: dict[str, bytes], folder: str, *, recursive: bool) -> list[dict[str, object]] | None:
    """The entries of a folder, of those below it too if `recursive`; None where there is no such folder."""
    prefix = f"{folder}/" if folder else ""
    below = [path.removeprefix(prefix) for path in files if path.startswith(prefix)]
    folders = {"/".join(path.split("/")[:depth]) for path in below for depth in range(1, path.count("/") + 1)}
    entries = [entry(files, prefix + path) for path in sorted(folders) + below if recursive or "/" not in path]
    return entries or None


def paths_info(files: dict[str, bytes], paths: list[str]) -> list[dict[str, object]]:
    return [entry(files, path) for path in paths if path in files or any(name.startswith(f"{path}/") for name in files)]


def entry(files: dict[str, bytes], path: str) -> dict[str, object]:
    content = files.get(path)
    oid = hashlib.sha1(content or path.encode()).hexdigest()
    return {"type": "directory" if content is None else "file", "oid": oid, "size": len(content or b""), "path": path}
