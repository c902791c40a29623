"""What tells data from others and from their own later versions (floor 1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from translator.config import DataConfig
from translator.errors import UserError
from translator.sources import SPLITS, read, require_folder_or_hub_id
from translator.text_files import require_file, version_of


def identity(config: DataConfig) -> list[Any]:
    """Of files where they lie, size and time; of data on the hub the commit."""
    if config.path is None:
        names = [getattr(config, split) for split in SPLITS]
        files = [Path(f) for name in names if name is not None for f in ((name,) if isinstance(name, str) else name)]
    elif Path(config.path).is_dir():
        root, cache = Path(config.path), Path(config.cache).resolve()
        if cache == root.resolve():
            raise UserError(f"data.cache={config.cache}: is data.path, and changes with every start; name another folder")
        files = sorted(_files_in(root / (config.folder or ""), but=cache))
        if config.folder is not None:  # where a card may say which files are which split
            files += sorted(path for path in root.iterdir() if path.is_file())
    else:
        require_folder_or_hub_id(config.path)
        return _commit(config) or [rows and rows._fingerprint for rows in (read(config, split) for split in SPLITS)]
    for file in files:
        require_file(file, " (named by data.train, data.validation or data.test)")
    return list(map(version_of, files))


def _files_in(folder: Path, *, but: Path) -> Iterator[Path]:
    """All files in a folder, also through links to folders, as `datasets` finds them; but none of another folder."""
    met = {but}
    for where, folders, names in os.walk(folder, followlinks=True):
        place = Path(where).resolve()
        if place in met:  # a link may lead back to where it lies
            folders.clear()
            continue
        met.add(place)
        yield from (path for path in map(Path(where).joinpath, names) if path.is_file())


def _commit(config: DataConfig) -> list[str]:
    """The commit of a dataset on the hub; nothing where the hub does not say: `read` then finds out why, or has a copy."""
    try:
        return [str(HfApi().dataset_info(config.path or "", revision=config.revision, timeout=10).sha)]
    except Exception:  # any of the client's many: no network, none such, not allowed, switched off
        return []
