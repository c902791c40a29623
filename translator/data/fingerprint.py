"""Fingerprint a data source by its content, so that the cache notices every change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from translator.config.options import DataConfig
from translator.data.cache import sha256_of
from translator.data.loading import as_user_error, load_from_hub, local_files, require_path
from translator.data.sources import SPLITS
from translator.data.text_files import require_file
from translator.runtime.errors import UserError


def identity(config: DataConfig) -> list[Any]:
    """Return the path and the SHA-256 of each file that is read. For data on the hub, return the commit.

    It takes about a second a GB, less for several files on several cores.
    """
    if not is_local(config):
        return _commit(config) or _cached_versions(config)
    if config.path is None:
        named = [getattr(config, split) or () for split in SPLITS]
        files = [Path(file) for files in named for file in ((files,) if isinstance(files, str) else files)]
    elif Path(config.cache).resolve() == Path(config.path).resolve():
        raise UserError(f"data.cache={config.cache}: is data.path, and changes with every start. Name another folder")
    else:
        files = local_files(config)
    for file in files:
        require_file(file, " (named by data.train, data.validation or data.test)")
    with ThreadPoolExecutor() as pool:  # hashing releases the lock
        return list(zip(map(str, files), pool.map(sha256_of, files), strict=True))


def is_local(config: DataConfig) -> bool:
    """Return whether the data are local files, which may change at any time."""
    return config.path is None or Path(config.path).is_dir()


def _commit(config: DataConfig) -> list[str]:
    """Return the commit of a dataset on the hub, or nothing if the hub does not answer."""
    require_path(config)
    try:
        return [str(HfApi().dataset_info(config.path or "", revision=config.revision, timeout=10).sha)]
    except Exception:  # the client raises many: no network, no such dataset, no access, switched off
        return []


def _cached_versions(config: DataConfig) -> list[str | None]:
    """Return the fingerprints of the copies that `datasets` has; UserError, with the reason, if it has none."""
    with as_user_error(f"data.path={config.path}"):
        return [
            load_from_hub(config, split)._fingerprint if isinstance(split, str) else None
            for split in (config.train, config.validation, config.test)]
