"""Locks: one process at a time on a file or a folder."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from translator.runtime.atomic_files import read_plain, require_no_link, write_text
from translator.runtime.errors import UserError


def locked(file: Path, message: str) -> FileLock:
    """Acquire a lock on a file; UserError with the message where another process holds it."""
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(message) from None
    return lock


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if need be; UserError that names the process at work there.

    The system drops the lock of a process that ends, also of a killed one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / ".lock.holder"
    other = read_plain(holder).decode(errors="replace") if holder.is_file() else "another process"
    with locked(require_no_link(folder / ".lock"),
                f"{folder}: {other} is at work here. Wait for its end, stop it, or choose another name=."):
        write_text(holder, f"process {os.getpid()} on {socket.gethostname()}\n")
        try:
            yield
        finally:
            if {path.name for path in folder.glob("*")} <= {".lock", holder.name}:  # nothing was made
                shutil.rmtree(folder, ignore_errors=True)
