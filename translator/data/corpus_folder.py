"""A downloaded corpus: a folder with two files of lines and a data card, which is complete or absent."""

from __future__ import annotations

import difflib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from translator.data.download import download
from translator.data.text_files import sha256_of
from translator.runtime.atomic_files import sync, writing
from translator.runtime.console import log
from translator.runtime.errors import UserError, one_line
from translator.runtime.typed import installation, typed

LICENCE = re.compile(r"^\s*licen[cs]e:\s*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
CARD = """---
license: other
license_name: {name}
language: {languages}
task_categories: [translation]
pretty_name: {title}
---
# {title}

{lines:,} pairs of sentences, line by line in {files}.

**Licence.** {licence}

**Source.** Downloaded on {date} and unpacked, without other changes:
{sources}

**Citation.**

{citation}
{readme}"""


class Entry(NamedTuple):
    """A corpus in an index."""

    title: str
    folder: str  # below data.downloads
    files: Mapping[str, str]  # addresses by the names of their files
    unpack: Callable[[Sequence[Path], Path], str]  # write LANGUAGE.txt for both languages into a folder; return a README
    citation: str


def install(folder: Path, entry: Entry, languages: Sequence[str]) -> None:
    """Download a corpus, verify it, and make its folder. One of several processes does it.

    UserError where the download fails, or is damaged. What was received is kept for the next start if it is good.
    """
    work = folder.with_name(f".{folder.name}.download")
    with writing(folder, among_others=True):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")) as lock:
            if not folder.is_dir():
                log(f"fetching {entry.title}: {', '.join(entry.files.values())}")
                for name, url in entry.files.items():
                    download(url, work / name)
                try:
                    _build(folder, entry, languages, [work / name for name in entry.files])
                except ValueError as error:
                    shutil.rmtree(work)
                    raise UserError(f"{', '.join(entry.files.values())}: damaged: {error}. The download is removed. Run the "
                                    "same command to fetch it again.") from error
                shutil.rmtree(work)
            Path(lock.lock_file).unlink(missing_ok=True)


def _build(folder: Path, entry: Entry, languages: Sequence[str], archives: Sequence[Path]) -> None:
    """Unpack and verify archives. ValueError where they are damaged."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with writing(folder, among_others=True):  # a full disk: the archives are good
            readme = entry.unpack(archives, partial)
    except UserError:
        raise
    except Exception as error:  # each kind of archive has its own
        raise ValueError(one_line(str(error))[:300] or type(error).__name__) from error
    files = [partial / f"{language}.txt" for language in languages]
    counts = [_lines(file) for file in files]
    if counts[0] != counts[1] or not counts[0]:
        raise ValueError(f"{counts[0]:,} lines of {languages[0]}, and {counts[1]:,} of {languages[1]}")
    licence = found[1] if (found := LICENCE.search(readme)) else "unknown"
    urls = zip(archives, entry.files.values(), strict=True)
    (partial / "README.md").write_text(CARD.format(
        name=json.dumps(licence), languages=json.dumps(list(languages)), title=entry.title, lines=counts[0], licence=licence,
        files=" and ".join(f"`{file.name}`" for file in files), date=date.today(), citation=entry.citation,
        sources="\n".join(f"- <{url}>, SHA-256 `{sha256_of(archive)}`" for archive, url in urls),
        readme=readme and f"\n## README of the archive\n\n```text\n{readme.strip()}\n```\n"), encoding="utf-8")
    for file in partial.iterdir():
        sync(file)
    partial.rename(folder)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def nearest(name: str, names: Sequence[str], languages: Sequence[str]) -> str:
    """Return the message for a corpus that does not exist."""
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    listing = typed("corpora", source=languages[0], target=languages[1])
    return (f"data.corpus={name}: no such corpus; " + (f"did you mean {by_lower[near[0]]}? " if near else "")
            + f"`{listing}` lists them.")


def not_installed(error: ImportError) -> UserError:
    return UserError(f"{error.name} is not installed. Install it with `{installation('corpora')}`.")
