"""The folder of an export: whole or not there, and never in place of anything else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from translator import __version__
from translator.runs.run_folder import require_not_of_a_run
from translator.runtime.atomic_files import read_plain, require_writable, writing
from translator.runtime.errors import UserError
from translator.runtime.file_lock import locked

# The file that tells an export from folders that are not ours to replace.
MARK = "translator.json"


@contextmanager
def replaced(path: Path, run: Path, form: str) -> Iterator[Path]:
    """A folder to write to, which takes the name `path` at the end if nothing is raised, in place of an earlier export."""
    require_not_of_a_run(path)
    path = path.resolve()  # so that a link stays a link
    _require_ours(path)
    require_writable(path.parent)
    partial, old = (path.with_name(f".{path.name}.{state}") for state in ("partial", "old"))
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = locked(
        path.with_name(f".{path.name}.lock"), f"output={path}: another process writes it; wait for its end, or name another")
    if old.exists() and not path.exists():  # a process was killed between two renames
        old.rename(path)
    try:
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)
        with writing(path, "What was exported there before is kept." if path.exists() else ""):
            partial.mkdir()
            yield partial
            mark = {"format": form, "run": run.resolve().name, "version": __version__, "files": _files(partial)}
            (partial / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
        if path.exists():
            path.rename(old)
        partial.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _require_ours(path: Path) -> None:
    """UserError where there is anything that no export has written."""
    if not path.exists():
        return
    if not (path / MARK).is_file():
        raise UserError(f"output={path}: is there already and no export of ours; name another, or remove it")
    here = _files(path)
    try:
        written = json.loads(read_plain(path / MARK)).get("files", here)  # older exports do not say
    except (OSError, ValueError, AttributeError):
        written = []
    if others := sorted({*here} - {*written, MARK}):
        raise UserError(f"output={path}: {others[0]} there is no part of the export and would go with it; move it first")


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())
