"""The file that answers go to: complete or absent, and resumed where a process stopped early."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from translator.runtime.atomic_files import locked, require_no_link, take_place, writing
from translator.runtime.console import require_stdout
from translator.runtime.errors import UserError


class Output:
    """The lines of a file NAME, or of stdout without a name. They are in NAME.partial until all are written.

    With `job`, all that shapes the lines, the same job resumes an unfinished file. NAME.partial.job holds the job and, one a
    line, the numbers of the lines that were refused.
    """

    def __init__(self, name: str | None, job: Mapping[str, Any] | None = None, *, read: Sequence[str | None] = ()) -> None:
        """`read`: the files that the lines are made from. UserError for one of them, and for one that another job began."""
        self.name, self.job = name, job
        # Resolved, so that a link stays a link. A device, such as /dev/null, is written directly.
        self.path = Path(name).resolve() if name is not None and not _is_device(Path(name)) else None
        self.partial, self.record = Path(f"{self.path}.partial"), Path(f"{self.path}.partial.job")
        self.done = 0  # lines that an earlier process has written
        self.refused = 0  # of all lines
        if name is None:
            require_stdout("the lines", "Name a file: output=FILE.")
        if self.path is None:
            return
        if any(other is not None and Path(other).resolve() in (self.path, self.partial, self.record) for other in read):
            raise UserError(f"output={name}: is what is read, or its place until the output is complete. Name another file.")
        if self.path.is_dir():
            raise UserError(f"output={name}: is a folder. Name a file.")
        for path in (self.partial, self.record):
            require_no_link(path)
        self._lock = locked(
            Path(f"{self.partial}.lock"), f"{self.partial}: another process writes it. Wait for its end, or name another file.")
        if self.partial.is_file() and self.record.is_file():
            self._resume()
        elif self.partial.is_file() and self.partial.stat().st_size:
            raise UserError(
                f"{self.partial}: exists but has no resume record, like that for a pipe. Move it, or choose another output=.")

    def _resume(self) -> None:
        """Continue the unfinished file; UserError if another job began it."""
        first, *refused = self.record.read_text(encoding="utf-8").splitlines() or [""]
        now, begun = json.loads(json.dumps(self.job or {})), {}
        with suppress(ValueError):
            begun = json.loads(first)
        if begun != now:
            begun = begun if isinstance(begun, dict) else {}
            what = next((key for key in {**now, **begun} if begun.get(key) != now.get(key)), "input")
            raise UserError(
                f"{self.partial}: begun with another {what} ({begun.get(what)!r}, now {now.get(what)!r}). Restore it, or "
                f"remove {self.partial} to start again.")
        self.done = _keep_whole_lines(self.partial)
        self.refused = len({number for number in refused if number.isdigit() and int(number) <= self.done})

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the file for the remaining lines. It takes its name at the end, if nothing is raised."""
        if self.path is None:
            with writing(self.name or "stdout", among_others=True):
                if self.name is None:
                    yield sys.stdout.buffer
                else:
                    with Path(self.name).open("wb") as file:
                        yield file
            return
        if not self.done:  # what is there has no complete line
            self.partial.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)
        if self.job is not None and not self.record.is_file():
            with writing(self.record):
                new = self.record.with_name(f"{self.record.name}.new")
                new.write_text(json.dumps(self.job) + "\n", encoding="utf-8")
                new.rename(self.record)
        kept = "The lines before are kept there" + (", and the same command resumes." if self.job is not None else ".")
        with writing(self.partial, kept, among_others=True):
            with _open(self.partial, "ab" if self.done else "wb") as file:
                yield file
            take_place(self.partial, self.path)
        self.record.unlink(missing_ok=True)
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def note_refused(self, number: int) -> None:
        """Count a line, by number from 1, as refused, and record it for a process that resumes."""
        self.refused += 1
        if self.path is not None and self.job is not None:
            with self.record.open("a", encoding="utf-8") as record:
                record.write(f"{number}\n")


def _keep_whole_lines(partial: Path) -> int:
    """Drop an incomplete last line; return how many lines are left."""
    lines, whole = 0, partial.with_name(f"whole.{partial.name}")
    with _open(partial, "rb") as old, _open(whole, "wb") as new, suppress(EOFError, gzip.BadGzipFile, zlib.error):
        for line in old:
            if line.endswith(b"\n"):
                new.write(line)
                lines += 1
    whole.rename(partial)
    return lines


def _open(partial: Path, mode: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(partial, mode) if partial.name.endswith(".gz.partial") else partial.open(mode))


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
