"""The folder of an export: written whole or not at all, and never over anything else."""

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

# The file that marks a folder as an export, which may be replaced.
MARK = "translator.json"


@contextmanager
def replaced(path: Path, run: Path, form: str) -> Iterator[Path]:
    """Yield a folder to write to. If nothing is raised, it is renamed to `path`, in place of an earlier export."""
    require_not_of_a_run(path)
    path = path.resolve()  # so that a link stays a link
    _require_export(path)
    require_writable(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (path.with_name(f".{path.name}.{state}") for state in ("partial", "old"))
    lock = locked(
        path.with_name(f".{path.name}.lock"), f"output={path}: another process writes it; wait for its end, or name another")
    _restore(old, path)  # a process was killed between two renames
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
    finally:
        _restore(old, path)
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _restore(old: Path, path: Path) -> None:
    if old.exists() and not path.exists():
        old.rename(path)


def _require_export(path: Path) -> None:
    """Raise UserError if `path` holds anything that no export has written."""
    if not path.exists():
        return
    if not (path / MARK).is_file():
        raise UserError(f"output={path}: exists, and is not an export. Name another folder, or remove it.")
    present = _files(path)
    try:
        written = json.loads(read_plain(path / MARK)).get("files", present)  # older exports do not say
    except (OSError, ValueError, AttributeError):
        written = []
    if others := sorted({*present} - {*written, MARK}):
        raise UserError(f"output={path}: {others[0]} is not part of the export, and would be deleted. Move it first.")


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())
