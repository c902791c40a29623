"""One process at a time on a file or a folder."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from translator.runtime.atomic_files import read_plain, require_no_link, write_text
from translator.runtime.errors import UserError, one_line


def locked(file: Path, told: str) -> FileLock:
    """A lock on a file, held; UserError, which tells this, where another process holds it."""
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(told) from None
    return lock


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Inside, no other process has `folder`, which is made if need be; UserError, naming the other, where one has it.

    The system itself drops the lock of a process that ends, however it ends: what a killed one leaves behind stops nobody.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / ".lock.holder"
    try:
        lock = FileLock(require_no_link(folder / ".lock")).acquire(blocking=False)
    except Timeout:
        other = "another process"
        with suppress(OSError):
            other = one_line(read_plain(holder).decode(errors="replace"))
        raise UserError(f"{folder}: {other} is at work here; wait for its end, stop it, or choose another name=") from None
    with lock:
        write_text(holder, f"process {os.getpid()} on {socket.gethostname()}\n")
        try:
            yield
        finally:
            if {path.name for path in folder.glob("*")} <= {".lock", holder.name}:  # nothing came of it
                shutil.rmtree(folder, ignore_errors=True)
