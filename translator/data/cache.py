"""Folders of prepared data: complete or absent, made by one process at a time, and checked when they are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from translator.data.text_files import require_file
from translator.runtime.atomic_files import read_plain, sync, take_place
from translator.runtime.errors import UserError, one_line

# Part of every key. Raise the number when the content of the folders changes.
FORMAT = [9, *(f"{package} {version(package)}" for package in ("datasets", "sentencepiece"))]
# In each folder: the SHA-256 sums of its other files, as `sha256sum -c` reads them.
SUMS = "SHA256SUMS"
REBUILD = "Remove this folder; the next start rebuilds it"


def cache_key(*determined_by: object) -> str:
    """Return a key that differs if anything differs that determines a folder's content."""
    return hashlib.sha256(json.dumps([FORMAT, *determined_by], sort_keys=True).encode()).hexdigest()[:16]


def cached_folder(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache. If it is missing, `fill` writes its files into a new one.

    Of several processes, one makes the folder and the others wait.
    """
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{name}.lock"):
        if not folder.is_dir():
            partial = cache / f".{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir()
                fill(partial)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            files = sorted(filter(Path.is_file, partial.iterdir()))
            (partial / SUMS).write_text("".join(f"{sha256_of(file)}  {file.name}\n" for file in files))
            for file in (*files, partial / SUMS):
                sync(file)
            take_place(partial, folder)
    return folder


def checked_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a cached folder; UserError if it was damaged. Takes a second a GB."""
    try:
        require_file(folder / name)  # opening a FIFO would wait
        intact = f"{sha256_of(folder / name)}  {name}" in read_plain(folder / SUMS).decode().splitlines()
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"{folder}: damaged: {one_line(str(error))[:200]}. {REBUILD}") from error
    if not intact:
        raise UserError(f"{folder}: damaged: {name} is not what was written. {REBUILD}")
    return folder / name


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
