"""Resumable downloads of large files by HTTP."""

from __future__ import annotations

import os
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from translator.runtime.atomic_files import take_place, writing
from translator.runtime.console import Progress
from translator.runtime.errors import UserError

MIRROR = "CORPORA_MIRROR"  # the address of a copy of the servers, by host, as `wget --force-directories` writes one
TIMEOUT = 60  # seconds without a byte
BLOCK = 1 << 20


def download(url: str, path: Path) -> None:
    """Download a file to `path`, which is complete or absent; what a killed start received is in `.partial` beside it.

    A broken connection is resumed as long as each attempt receives something. UserError with the reason after that.
    """
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get(MIRROR)
    address = f"{mirror.rstrip('/')}/{url.partition('://')[2]}" if mirror else url
    partial = path.with_name(f"{path.name}.partial")
    while True:
        before, reason = _size(partial), "the connection ended early"
        try:
            if _receive(address, partial):
                take_place(partial, path)
                return
        except (OSError, HTTPException, ValueError) as error:  # ValueError: no such kind of address
            reason = str(error.reason if type(error) is URLError else error) or type(error).__name__
        if _size(partial) <= before:
            kept = f" The {_size(partial) / 1e6:,.1f} MB received are kept." if _size(partial) else ""
            raise UserError(f"{address}: download failed: {reason}. Check the network and retry.{kept}")


def _receive(address: str, partial: Path) -> bool:
    """Append the rest of a file to `partial`, and return whether it is complete."""
    received = _size(partial)
    request = Request(address, headers={"Accept-Encoding": "identity", "User-Agent": "seq2seq-translator"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        response = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == 416:  # nothing comes after these bytes: unpacking will verify them
            return True
        raise
    with response, writing(partial, among_others=True), partial.open("ab") as file:
        if response.status != 206:  # the whole file, from a server without ranges
            file.truncate(0)
            received = 0
        length = response.headers.get("Content-Length")
        total = received + int(length) if length else None
        progress = Progress(done=received / total if total else 0)
        try:
            while block := response.read1(BLOCK):
                file.write(block)
                file.flush()  # a kill loses nothing
                received += len(block)
                if total:
                    progress.advance(min(1, received / total), f"{received / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        finally:
            progress.close()
    return total in (None, received)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
