"""OPUS, a collection of parallel corpora (Tiedemann 2012, https://aclanthology.org/L12-1246/), by the index of opustools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from translator.data.corpus_folder import Entry, nearest, not_installed
from translator.runtime.atomic_files import take_place, writing
from translator.runtime.errors import UserError

CITATION = "J. Tiedemann. 2012. Parallel Data, Tools and Interfaces in OPUS. LREC. Cite the authors of the corpus as well."


def find(name: str, version: str | None, languages: tuple[str, str], downloads: Path) -> Entry:
    """Return a corpus: by default the newest release in the index. A version may be newer than the index.

    UserError with the nearest name for an unknown one, or with the languages of the corpus.
    """
    rows = list_pair(languages, downloads, name)
    if not rows:
        raise UserError(_missing(name, languages, downloads))
    newest = next((row for row in rows if row["latest"] == "True"), rows[-1])
    release, pair = version or newest["version"], "-".join(sorted(languages))
    files = {f"{pair}.txt.zip": newest["url"].replace(f"/{newest['version']}/", f"/{release}/")}
    return Entry(f"{name} {release}", f"{name}/{release}/{pair}", files, partial(_unpack, languages), CITATION)


def list_pair(languages: tuple[str, str], downloads: Path, corpus: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of the index with a pair of languages, in any order: all releases of one corpus, or of all."""
    source, target = languages
    return _ask(downloads, lambda index: index.get_corpora_data()[0], source=source, target=target, directory=corpus)


def _ask(downloads: Path, question: Callable[[Any], Any], **of: str | None) -> Any:
    """Ask the SQLite database of opustools, which unpacks it to a file. No network is needed."""
    try:
        from opustools.opus_get import OpusGet
    except ImportError as error:
        raise not_installed(error) from error
    database = downloads / f".opustools-{version_of('opustools')}.db"  # a new release would not replace its file
    if not database.is_file():
        partial_file = database.with_suffix(f".{os.getpid()}")
        with writing(database, among_others=True):
            OpusGet(local_db=True, database=str(partial_file))  # it would keep a file that a kill left incomplete
            take_place(partial_file, database)
    return question(OpusGet(
        **of, release=None, preprocess="moses", local_db=True, list_resources=True, suppress_prompts=True,
        database=str(database), download_dir=str(downloads)))


def _missing(name: str, languages: tuple[str, str], downloads: Path) -> str:
    names = _ask(downloads, lambda index: index.dbo.run_corpora_query({"preprocessing": "moses"}))
    if name not in names:
        return nearest(name, names, languages)
    known = []
    for language in languages:
        query = {"source": language, "corpus": name, "preprocessing": "moses"}
        if others := _ask(downloads, lambda index: index.dbo.run_languages_query(query)):  # noqa: B023 called at once
            known.append(f"{language} with {', '.join(sorted(others)[:20])}")
    return f"data.corpus={name}: has no pair {'-'.join(languages)}, but {'; '.join(known) or 'neither language'}."


def _unpack(languages: Sequence[str], archives: Sequence[Path], folder: Path) -> str:
    """Write the two texts of an archive in Moses format, which reading verifies by their CRC, and its licence."""
    with ZipFile(archives[0]) as archive:
        for language in languages:
            [member] = [name for name in archive.namelist() if name.endswith(f".{language}")]
            with archive.open(member) as text, (folder / f"{language}.txt").open("wb") as file:
                shutil.copyfileobj(text, file, 1 << 20)
        about = {name: archive.read(name).decode(errors="replace") for name in {"README", "LICENSE"} & set(archive.namelist())}
    if "LICENSE" in about:
        (folder / "LICENSE").write_text(about["LICENSE"], encoding="utf-8")
    return about.get("README", "")
