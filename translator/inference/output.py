"""The file that answers go to: whole or not there, and taken up again where a process ended early."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from translator.runtime.atomic_files import require_no_link, take_place, writing
from translator.runtime.console import require_stdout
from translator.runtime.errors import UserError
from translator.runtime.file_lock import locked


class Output:
    """The lines of a file NAME, or of stdout without a name. Until it is whole the file is NAME.partial.

    With `job`, all that shapes the lines, an unfinished file of the same job is gone on with. Beside it NAME.partial.job holds
    the job and, a line each, the numbers of the lines that were refused.
    """

    def __init__(self, name: str | None, job: Mapping[str, Any] | None = None, *, read: Sequence[str | None] = ()) -> None:
        """`read`: the files that the lines are made of. UserError for one of them, and for one begun by others."""
        self.name = name
        self.job = job
        # Where a link leads, so that it stays a link.
        self.path = Path(name).resolve() if name is not None and not _is_device(name) else None
        self.partial, self.about = Path(f"{self.path}.partial"), Path(f"{self.path}.partial.job")
        self.done = 0  # lines that an earlier process has written
        self.refused = 0  # of all lines
        if name is None:
            require_stdout("the lines", "Name a file: output=FILE.")
        if self.path is None:
            return
        if any(other is not None and Path(other).resolve() in (self.path, self.partial, self.about) for other in read):
            raise UserError(f"output={name}: is what is read, or would take the place of it meanwhile; name another file")
        if self.path.is_dir():
            raise UserError(f"output={name}: is a folder; name a file")
        require_no_link(self.partial)
        require_no_link(self.about)
        self._lock = locked(
            Path(f"{self.partial}.lock"), f"{self.partial}: another process writes it; wait for its end, or name another file")
        if self.partial.is_file() and self.about.is_file():
            self._take_up(self.job or {})
        elif self.partial.is_file() and self.partial.stat().st_size:
            raise UserError(
                f"{self.partial}: is there already, and nothing tells what it is of, as of a text that came by a pipe; move it "
                "away, or name another output")

    def _take_up(self, job: Mapping[str, Any]) -> None:
        """Go on with what is there of this job; UserError where it is another's."""
        first, *refused = self.about.read_text(encoding="utf-8").splitlines() or [""]
        now = json.loads(json.dumps(job))
        begun: Any = None
        with suppress(ValueError):
            begun = json.loads(first)
        known = begun if isinstance(begun, dict) else {}
        if begun != now:
            what = next((key for key in {**now, **known} if known.get(key) != now.get(key)), "input")
            raise UserError(
                f"{self.partial}: begun with another {what} ({known.get(what)!r}, now {now.get(what)!r}); give the same to go "
                f"on, or remove {self.partial} to begin anew")
        self.done = _keep_whole_lines(self.partial)
        self.refused = len({number for number in refused if number.isdigit() and int(number) <= self.done})

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """The file to write the remaining lines to. It takes its name at the end, if nothing is raised."""
        if self.path is None:
            with writing(self.name or "stdout", among_others=True):
                if self.name is None:
                    yield sys.stdout.buffer
                else:
                    with Path(self.name).open("wb") as file:
                        yield file
            return
        if not self.done:  # of what may stand there no line is whole
            self.partial.unlink(missing_ok=True)
            self.about.unlink(missing_ok=True)
        if self.job is not None and not self.about.is_file():
            with writing(self.about):
                aside = self.about.with_name(f"{self.about.name}.new")
                aside.write_text(json.dumps(self.job) + "\n", encoding="utf-8")
                aside.rename(self.about)
        kept = "The lines before are kept there" + (", and the same command resumes." if self.job is not None else ".")
        with writing(self.partial, kept, among_others=True):
            with _opened(self.partial, "ab" if self.done else "wb") as file:
                yield file
            take_place(self.partial, self.path)
        self.about.unlink(missing_ok=True)
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def note_refused(self, number: int) -> None:
        """Count a line, the first being 1, as refused: for good, where another process may have to finish."""
        self.refused += 1
        if self.path is not None and self.job is not None:
            with self.about.open("a", encoding="utf-8") as about:
                about.write(f"{number}\n")


def _keep_whole_lines(partial: Path) -> int:
    """Drop what stands behind the last whole line; how many lines are left."""
    lines = size = 0
    if not _is_packed(partial):
        with partial.open("r+b") as file:
            for line in file:
                if line.endswith(b"\n"):
                    lines, size = lines + 1, size + len(line)
            file.truncate(size)
        return lines
    whole = partial.with_name(f"{partial.name}.whole")  # what is packed cannot be cut
    with _opened(partial, "rb") as old, gzip.open(whole, "wb") as new, suppress(EOFError, gzip.BadGzipFile, zlib.error):
        for line in old:
            if line.endswith(b"\n"):
                new.write(line)
                lines += 1
    whole.rename(partial)
    return lines


def _opened(partial: Path, mode: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(partial, mode) if _is_packed(partial) else partial.open(mode))


def _is_packed(partial: Path) -> bool:
    return partial.name.endswith(".gz.partial")


def _is_device(name: str) -> bool:
    """Whether it is there and neither a file nor a folder: it then stays itself."""
    path = Path(name)
    return path.exists() and not path.is_file() and not path.is_dir()
