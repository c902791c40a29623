"""Text files, plain or .gz: open them, read their lines, recognise what is not text."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from translator.runtime.atomic_files import GZIP
from translator.runtime.errors import UserError

# First bytes of files that hold no UTF-8 text: what they are, and the remedy. Others fail as invalid UTF-8.
SIGNATURES = {
    GZIP: "is packed by gzip. Rename it to end in .gz",
    b"PAR1\x15": "is Parquet. Rename it to end in .parquet",
    b"PK\x03\x04": "is a .zip archive (so are Excel files). Unpack it, or export it as .tsv",
}
ENCODINGS = {b"\xff\xfe\0\0": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}  # by the byte order mark
LEAST_HEAD, HEAD = 16, 1000  # fewest and most bytes from which UTF-16 without a byte order mark is recognised


def other_content(head: bytes) -> str:
    """Return what the first bytes of a file show it to be instead of UTF-8 text, with the remedy; empty if it may be text."""
    for signature, words in SIGNATURES.items():
        if head.startswith(signature):
            return words
    encoding = next((name for mark, name in ENCODINGS.items() if head.startswith(mark)), None)
    for order, zeros in (("LE", head[1:HEAD:2]), ("BE", head[0:HEAD:2])):  # next to each Latin letter
        if len(head) >= LEAST_HEAD and zeros.count(0) > 0.7 * len(zeros) and b"\0\0" not in head[:HEAD]:
            encoding = encoding or f"UTF-16{order}"
    return f"is {encoding}. Convert it to UTF-8: iconv -f {encoding} -t UTF-8 FILE > NEW" if encoding else ""


def kind_of(path: Path) -> str:
    """Return a file's suffix without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def require_file(path: Path) -> None:
    """Raise UserError unless the path is a regular file."""
    if not path.is_file():
        problem = "is a folder. Name a file" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
        raise UserError(f"{path}: {problem}")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file and decompress .gz. Raise UserError where it cannot be read, or is binary but not named .parquet."""
    require_file(path)
    try:
        with cast(io.BufferedReader, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            problem = other_content(file.peek(HEAD))
            if problem and kind_of(path) != ".parquet":
                raise UserError(f"{path}: {problem}")
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def read_lines(path: Path, *, keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without a byte order mark. Only line feeds, or CR LF, separate them."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            content = line if keep_ends else line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield content.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: not UTF-8 at byte {error.start + 1}. Convert the file to UTF-8") from error
