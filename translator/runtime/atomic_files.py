"""Locks, and atomic files: written aside, synced, renamed. Tensors (safetensors) and states (JSON) hold their own checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from translator.runtime.errors import UserError

Weights = dict[str, Tensor]
SUM = "sha256"  # the key of a file's own checksum
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk or quota: only writing raises them
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with its checksum, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with _replacing(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode  # by the umask: safetensors lets nobody else read
        save_file(plain, partial, metadata={SUM: checksum(plain)})
        partial.chmod(mode)


def load_tensors(path: Path) -> Weights:
    """Load a safetensors file; UserError where it is missing, or damaged by its own checksum."""
    if not path.is_file():  # a FIFO would be waited for
        raise UserError(f"{path}: damaged or missing weights: no such file, or not a regular one. Restore it from a backup.")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no mapping
            expected = (file.metadata() or {}).get(SUM)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or missing weights: {error}. Restore it from a backup.") from error
    if expected is not None and checksum(tensors) != expected:
        raise UserError(f"{path}: damaged weights: the checksum differs. Restore the file from a backup.")
    return tensors


def checksum(tensors: Weights) -> str:
    """Hash names, types, shapes and numbers."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def sealed(state: Mapping[str, Any]) -> str:
    """Return a state as JSON, with its checksum."""
    return json.dumps({SUM: _state_checksum(state), "state": state}, indent=1) + "\n"


def unsealed(path: Path) -> dict[str, Any]:
    """Load the state of a file that `sealed` made; UserError where it is damaged."""
    try:
        content = json.loads(read_plain(path))
        expected, state = content[SUM], content["state"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged checkpoint: {error}") from error
    if _state_checksum(state) != expected:
        raise UserError(f"{path}: damaged checkpoint: the checksum differs")
    return state


def _state_checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def read_plain(path: Path, limit: int = 1 << 28) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. OSError for any other: /dev/zero or a FIFO never end."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file, or not a regular one", str(path))
    if path.stat().st_size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", str(path))
    return path.read_bytes()


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with _replacing(path) as partial:
        partial.write_bytes(content)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, and at the end rename it into place."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            partial.unlink(missing_ok=True)  # through a link another file would be written
            yield partial
            take_place(partial, path)
    except UserError:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path | str, kept: str = "", *, among_others: bool = False) -> Iterator[None]:
    """Turn an error of writing `path` into a UserError that names it, with what was `kept`: a full disk names no file.

    `among_others`: other work is done inside too, so only errors of a full disk count as errors of writing.
    """
    try:
        yield
    except BrokenPipeError:  # the reader has left
        raise
    except (OSError, SafetensorError) as error:  # the latter is how safetensors reports a full disk or a missing permission
        if among_others and getattr(error, "errno", None) not in FULL:
            raise
        raise UserError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}. {kept}") from error


def require_writable(folder: Path) -> None:
    """Raise UserError where a folder, or the nearest parent that exists, is read-only or full. Nothing is created."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"{existing}: is a file, not a folder. Name another folder, or move the file.")
    with writing(folder), tempfile.TemporaryFile(dir=existing) as probe:
        probe.write(bytes(1 << 20))  # as much as a report with its pictures takes
        probe.flush()


def require_no_link(path: Path) -> Path:
    """Return a path to write to; UserError where it is a link."""
    if path.is_symlink():
        raise UserError(f"{path}: is a link, and its target would be overwritten. Remove the link.")
    return path


def take_place(partial: Path, path: Path) -> None:
    """Rename a file into place, safe against a loss of power: sync its content, then its folder."""
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    """Lock a folder, created if need be, until this process ends; UserError that names the process at work there."""
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / ".lock.holder"
    other = read_plain(holder).decode(errors="replace") if holder.is_file() else "another process"
    message = f"{folder}: {other} is at work here. Wait for its end, stop it, or choose another name=."
    lock = locked(require_no_link(folder / ".lock"), message)
    try:
        write_text(holder, f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        if {path.name for path in folder.glob("*")} <= {".lock", holder.name}:  # nothing was made
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()
