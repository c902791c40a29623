"""Fingerprint a data source by its content, so that the cache notices every change."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from translator.config.options import DataConfig
from translator.data.loading import files_of, require_path
from translator.data.sources import SPLITS, read
from translator.data.text_files import require_file
from translator.runtime.errors import UserError


def identity(config: DataConfig) -> list[Any]:
    """Return the path and the SHA-256 of each file that is read; of data on the hub the commit.

    It costs about a second a GB, less where there are several files and cores.
    """
    if not is_local(config):
        require_path(config)
        return _commit(config) or [rows and rows._fingerprint for rows in (read(config, split) for split in SPLITS)]
    if config.path is None:
        names = [getattr(config, split) for split in SPLITS]
        files = [Path(f) for name in names if name is not None for f in ((name,) if isinstance(name, str) else name)]
    elif Path(config.cache).resolve() == Path(config.path).resolve():
        raise UserError(f"data.cache={config.cache}: is data.path, and changes with every start. Name another folder")
    else:
        files = files_of(config)
    for file in files:
        require_file(file, " (named by data.train, data.validation or data.test)")
    with ThreadPoolExecutor() as pool:  # hashing holds no lock
        return list(zip(map(str, files), pool.map(sha256_of, files), strict=True))


def is_local(config: DataConfig) -> bool:
    """Return whether the data are local files, which may change at any time."""
    return config.path is None or Path(config.path).is_dir()


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _commit(config: DataConfig) -> list[str]:
    """Return the commit of a dataset on the hub; nothing where it does not say: `read` then finds out why, or has a copy."""
    try:
        return [str(HfApi().dataset_info(config.path or "", revision=config.revision, timeout=10).sha)]
    except Exception:  # any of the client's many: no network, none such, not allowed, switched off
        return []
