"""Load the validation or test set a run is scored on, all of it or one direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from translator.config.languages import tag_of
from translator.config.options import DataConfig
from translator.data.cleaning import READ_ROWS, Counts, same_sentence, with_text
from translator.data.preparation import SIDES, digest, load_split
from translator.data.sources import read
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.runtime.errors import UserError

# The languages to translate from and to; None for all those that a model has.
Direction = tuple[str, str] | None


def require_comparable(runs: Sequence[Path], direction: Direction) -> None:
    """UserError where a run does not translate in this direction; where there is none, where two translate different ones."""
    datas = [RunFolder(run).load_config().data for run in runs]
    for run, data in zip(runs, datas, strict=True):
        if direction is not None and direction not in data.directions:
            there = ", ".join(" to ".join(one) for one in data.directions)
            raise UserError(f"source={direction[0]} target={direction[1]}: the model in {run} translates {there}")
        if direction is None and set(data.directions) != set(datas[0].directions):
            raise UserError(
                f"{runs[0]} translates {datas[0].source} to {datas[0].target}, {run} {data.source} to {data.target}: nothing "
                "to compare; where both have one direction, name it by source= and target=")


def data_of(folder: RunFolder) -> DataConfig:
    """Return the data options of a run; UserError where its data.cache is not a cache here, and would become one.

    The run may be a stranger's, who must not choose where files are written.
    """
    data = folder.load_config().data
    place = Path(data.cache).resolve()
    if place.is_dir():
        allowed = not any(place.iterdir()) or any(place.glob("*__t*-*"))  # what a cache holds from its first use on
    else:
        allowed = not place.exists() and place.is_relative_to(Path.cwd())
    if not allowed:
        raise UserError(
            f"{folder.config_file}: data.cache={data.cache}: is no data cache on this machine. If the run is yours, make an "
            "empty folder there; else name another in that file")
    return data


def held_out(folder: RunFolder, split: str, direction: Direction) -> tuple[list[str], list[str]]:
    """Return the sources and references of a split of a run's data; those of one direction without tags.

    UserError where validation or test is not what it was at training: the model may have learned from what it is now.
    """
    data = data_of(folder)
    if data.directions == (direction,):
        direction = None  # it is all there is
    if split == "train" and direction is not None:
        raise UserError("split=train: is kept cleaned and in all directions together; leave out source and target")
    rows = load_split(data, split)
    if folder.digest_of(split) not in (None, digest(rows)):
        raise UserError(
            f"split={split}: the data have changed since {folder.path} was trained, which may know these sentences; bring "
            "the old ones back, or score files by source_file= and reference_file=")
    if direction is None:
        return list(rows["source"]), list(rows["target"])
    rows = read(dataclasses.replace(data, source=direction[0], target=direction[1]), split)
    if rows is None:
        raise UserError(f"data.{split}=null: this split was cut from all directions together; leave out source and target")
    pairs = list(with_text(rows, Counts()))
    return [source for source, _ in pairs], [target for _, target in pairs]


def warn_of_learned(
    runs: Iterable[Path], owner: Path, split: str, sources: Sequence[str], references: Sequence[str]
) -> None:
    """Say which runs have learned from pairs of a split that its owner has held out, as those with other data may have."""
    for run in dict.fromkeys(runs):
        folder = RunFolder(run)
        if split == "train" or folder.digest_of(split) == RunFolder(owner).digest_of(split):
            continue
        try:
            count = _learned(folder, sources, references)
        except UserError as error:
            log(f"warning: whether {run} was trained on some of these sentences cannot be told: {error}")
        else:
            if count:
                log(f"warning: {run} was trained on {count:,} of these {len(sources):,} sentences, or on their translations: "
                    "its scores are too good; compare on files that none has seen, by source_file= and reference_file=")


def _learned(folder: RunFolder, sources: Sequence[str], references: Sequence[str]) -> int:
    """Return how many pairs have a sentence, on its side, that a run's training data hold now; UserError for missing data."""
    data = data_of(folder)
    sides = [set(map(same_sentence, side)) for side in (sources, references)][: 1 if data.overlap == "source" else 2]
    known = [set[str]() for _ in sides]
    for rows in load_split(data, "train").iter(READ_ROWS):
        for sentences, name, met in zip(sides, SIDES, known, strict=False):
            met.update(sentences.intersection(map(same_sentence, rows[name])))
    return sum(
        any(same_sentence(text) in met for text, met in zip(pair, known, strict=False))
        for pair in zip(sources, references, strict=True))


def language_of(folder: RunFolder, direction: Direction) -> str:
    """That of the references: the one that a run translates to, or this direction of it; empty for several."""
    return folder.load_config().data.language if direction is None else direction[1]


def sources_for(run: Path, sources: Sequence[str], direction: Direction) -> list[str]:
    """The sources as this run takes them: one of several languages, with the tag of the one to translate to."""
    if direction is None or not RunFolder(run).load_config().data.tags:
        return list(sources)
    return [tag_of(direction[1]) + source for source in sources]
