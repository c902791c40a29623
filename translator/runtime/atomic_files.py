"""Files that are whole or not there, and tensors and states that hold their own sum.

What is written stands aside until it is whole and synced, and then takes its name. Tensors are safetensors, states are JSON:
nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from translator.runtime.errors import UserError

Weights = dict[str, Tensor]
# The name under which a file holds its own sum.
SUM = "sha256"
# Bytes that a folder must have room for before work begins whose results go there: a report with its pictures takes as much.
ROOM = 1 << 20
# Bytes of the largest file of a run folder that is read as a whole; of its weights, none is.
LARGEST = 1 << 28
# Errors of a disk, or of a user's share of it, that is full: only writing raises them.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The first bytes of what gzip has packed.
GZIP = b"\x1f\x8b"


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, with the sum of what it holds, aside; sync it, then rename it into place."""
    partial = path.with_name(f".{path.name}.partial")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with writing(path):
            partial.unlink(missing_ok=True)  # were it a link, another's file would be written
            partial.touch()
            mode = partial.stat().st_mode  # what others may do with it: safetensors lets them do nothing
            save_file(plain, partial, metadata={SUM: _sum_of(plain)})
            partial.chmod(mode)
            take_place(partial, path)
    except UserError:
        partial.unlink(missing_ok=True)
        raise


def load_tensors(path: Path) -> Weights:
    """The tensors of a safetensors file; UserError where it is damaged, by its own sum if it holds one."""
    if not path.is_file():  # a FIFO would be waited for
        raise UserError(f"{path}: damaged or missing weights: no such file, or not a regular one; take the file from a copy")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no mapping
            expected = (file.metadata() or {}).get(SUM)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or missing weights: {error}; take the file from a copy") from error
    if expected is not None and _sum_of(tensors) != expected:
        raise UserError(f"{path}: damaged weights: they are not those that were written; take the file from a copy")
    return tensors


def _sum_of(tensors: Weights) -> str:
    """Of names, types, shapes and numbers."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def sealed(state: Mapping[str, Any]) -> str:
    """A state as JSON, with its sum."""
    return json.dumps({SUM: hashlib.sha256(_canonical(state)).hexdigest(), "state": state}, indent=1) + "\n"


def unsealed(path: Path) -> dict[str, Any]:
    """The state of a file that `sealed` made; UserError where it is damaged."""
    try:
        whole = json.loads(read_plain(path))
        expected, state = whole[SUM], whole["state"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged checkpoint: {error}") from error
    if hashlib.sha256(_canonical(state)).hexdigest() != expected:
        raise UserError(f"{path}: damaged checkpoint: it is not what was written")
    return state


def read_plain(path: Path, limit: int = LARGEST) -> bytes:
    """Return what a regular file of at most `limit` bytes holds; OSError for any other.

    A device such as /dev/zero would be read for ever, a FIFO waited for: they count as missing, also behind a link.
    """
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file, or not a regular one", str(path))
    with path.open("rb") as file:
        content = file.read(limit + 1) if path.stat().st_size <= limit else None
    if content is None or len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes, as no such file is", str(path))
    return content


def _canonical(state: Mapping[str, Any]) -> bytes:
    return json.dumps(state, sort_keys=True).encode()


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file aside, sync it, then rename it into place."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            partial.unlink(missing_ok=True)  # were it a link, another's file would be written
            partial.write_bytes(content)
            take_place(partial, path)
    except UserError:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path | str, kept: str = "", *, among_others: bool = False) -> Iterator[None]:
    """Raise UserError where writing `path` fails inside, with what was kept: a full disk's own error names no file.

    `among_others`: there is other work inside too, whose errors are its own.
    """
    try:
        yield
    except BrokenPipeError:  # its reader has left
        raise
    except (OSError, SafetensorError) as error:  # the latter is how safetensors reports a full disk or a missing permission
        if among_others and getattr(error, "errno", None) not in FULL:
            raise
        raise UserError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}. {kept}") from error


def require_writable(folder: Path) -> None:
    """Raise UserError where a folder, or the nearest above it that is there, is read-only or full. Nothing is made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"{there}: a file stands where a folder is wanted; name another, or move it")
    with writing(folder), tempfile.TemporaryFile(dir=there) as probe:
        probe.write(bytes(ROOM))
        probe.flush()


def require_no_link(path: Path) -> Path:
    """Return a path to write to; UserError where it is a link, through which another's file or folder would be written."""
    if path.is_symlink():
        raise UserError(f"{path}: is a link, and what it leads to would be written. Remove the link.")
    return path


def take_place(partial: Path, path: Path) -> None:
    """Whole, and after a loss of power too: what a file holds is synced, and then that its folder holds it."""
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
