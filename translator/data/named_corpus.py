"""The corpus that `data.corpus` names, as two files of lines."""

from __future__ import annotations

from pathlib import Path

from translator.config.data import DataConfig
from translator.data import mtdata_index, opus
from translator.data.corpus_folder import install
from translator.runtime.errors import UserError


def corpus_files(config: DataConfig) -> tuple[str, str]:
    """Return the files of the sources and of the targets, and download them first if they are not there.

    UserError where there is no such corpus or pair, or the download fails.
    """
    assert config.corpus is not None
    languages = config.source, config.target
    if config.is_of_mtdata:
        languages = mtdata_index.sides(config.corpus, *languages)
    folder = corpus_folder(config)
    if folder is None:
        downloads = Path(config.downloads)
        entry = mtdata_index.find(config.corpus) if config.is_of_mtdata else opus.find(
            config.corpus, config.version, languages, downloads)
        folder = downloads / entry.folder
        install(folder, entry, languages)
    source, target = (folder / f"{language}.txt" for language in languages)
    if missing := next((file for file in (source, target) if not file.is_file()), None):
        raise UserError(f"{missing}: no such file. Remove {folder}, and run the same command to fetch it again.")
    return str(source), str(target)


def corpus_folder(config: DataConfig) -> Path | None:
    """Return the folder of the corpus if it is downloaded, without a version the newest there; no index is asked."""
    pattern = config.corpus if config.is_of_mtdata else (
        f"{config.corpus}/{config.version or '*'}/{'-'.join(sorted((config.source, config.target)))}")
    return max(Path(config.downloads).glob(str(pattern)), default=None)
