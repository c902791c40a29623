"""The file that answers go to: complete or absent, and resumed where a process stopped early."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, cast

from translator.runtime.atomic_files import locked, require_no_link, take_place, write_text, writing
from translator.runtime.console import log, require_stdout
from translator.runtime.errors import UserError


class Output:
    """The lines of a file NAME, or of stdout without a name. They are in NAME.partial until all are written.

    With `job`, all that shapes the lines, the same job resumes an unfinished file: NAME.partial.job holds the job.
    """

    def __init__(self, name: str | None, job: Mapping[str, Any] | None = None, *, read: Sequence[str | None] = ()) -> None:
        """`read`: the files that the lines are made from. UserError for one of them, and for one that another job began."""
        self.name, self.job = name, job
        self.done = 0  # lines that an earlier process has written
        # Resolved, so that a link stays a link. A device, such as /dev/null, is written directly.
        path = Path(name or "").resolve()
        self.path = None if name is None or (path.exists() and not path.is_file() and not path.is_dir()) else path
        self.partial, self.record = Path(f"{path}.partial"), Path(f"{path}.partial.job")
        if name is None:
            require_stdout("the lines", "Name a file: output=FILE.")
        if self.path is None:
            return
        if any(other is not None and Path(other).resolve() in (path, self.partial, self.record) for other in read):
            raise UserError(f"output={name}: is what is read, or its place until the output is complete. Name another file.")
        if path.is_dir():
            raise UserError(f"output={name}: is a folder. Name a file.")
        if not path.parent.exists():
            log(f"output={name}: a new folder is made for it")
        for unfinished in (self.partial, self.record):
            require_no_link(unfinished)
        self._lock = locked(
            Path(f"{self.partial}.lock"), f"{self.partial}: another process writes it. Wait for its end, or name another file.")
        if self.partial.is_file() and self.partial.stat().st_size:
            self._require_same_job()
            self.done = _keep_whole_lines(self.partial)

    def _require_same_job(self) -> None:
        try:
            begun, now = dict(json.loads(self.record.read_bytes())), json.loads(json.dumps(self.job or {}))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{self.partial}: exists but has no resume record, like that for a pipe. Move it, or choose another output=."
            ) from error
        for what in now | begun:
            if begun.get(what) != now.get(what):
                raise UserError(
                    f"{self.partial}: begun with another {what} ({begun.get(what)!r}, now {now.get(what)!r}). Restore it, or "
                    f"remove {self.partial} to start again.")

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the file for the remaining lines. It takes its name at the end, if nothing is raised."""
        if self.path is None:
            with writing(self.name or "stdout", among_others=True), (
                    Path(self.name).open("wb") if self.name else nullcontext(sys.stdout.buffer)) as direct:
                yield direct
            return
        if not self.done:  # what is there has no complete line
            self.partial.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)
            if self.job is not None:
                write_text(self.record, json.dumps(self.job))
        kept = "The lines before are kept there" + (", and the same command resumes." if self.job is not None else ".")
        with writing(self.partial, kept, among_others=True):
            with _open(self.partial, "ab" if self.done else "wb") as file:
                yield file
            take_place(self.partial, self.path)
        self.record.unlink(missing_ok=True)
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()


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
