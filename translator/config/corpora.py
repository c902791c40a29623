"""The options of several corpora for one model: conf/data, data.corpora."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from translator.config.building import STRICT
from translator.config.data import LOCATION, DataConfig
from translator.config.stages import Weight
from translator.config.synthetic import BACK, PARALLEL, SyntheticOptions
from translator.runtime.errors import UserError, unknown

NAME = re.compile(r"[\w-]{1,60}")  # a part of names of metrics and runs
OF_ALL = {  # options that hold for all corpora together
    "corpora", "temperature", "holdout", "overlap", "window", "cache", "downloads", "workers", "augment", "tags_of_all",
    *(field.name for field in dataclasses.fields(SyntheticOptions))}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CorpusConfig(DataConfig):
    """One of several corpora, an entry of data.corpora with what it takes from `data`; or the only data."""

    name: str = ""
    weight: Weight | None = None
    tags_of_all: tuple[str, ...]

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the languages that all corpora together translate to."""
        return self.tags_of_all

    @property
    def needs_train(self) -> bool:
        """False: a corpus may be there for its validation and test only."""
        return False

    @property
    def holds_out(self) -> bool:
        """True: `corpora_of` checks it for all corpora together."""
        return True


def corpora_of(data: DataConfig) -> tuple[CorpusConfig, ...]:
    """Return the corpora of a mix; of other data, the data themselves. UserError for entries that cannot be together."""
    if data.corpora is None:
        return (as_corpus(data),)
    inherited = vars(as_corpus(data)) | dict.fromkeys(LOCATION) | {"corpora": None, "temperature": None}
    _require_names(data, [entry.get("name") for entry in data.corpora])
    corpora = tuple(_corpus(data, inherited, entry) for entry in data.corpora)
    trained = [corpus for corpus in corpora if corpus.has_train]
    data.require(bool(trained), "corpora", "no entry has training pairs. Give one train, path or corpus.")
    weighted = [corpus for corpus in trained if corpus.weight is not None]
    without = ", ".join(corpus.name for corpus in trained if corpus.weight is None)
    data.require(not weighted or not without, "corpora",
                 f"give each entry with training pairs a weight, or none. {without} has none.")
    data.require(not weighted or data.temperature is None, "temperature", "replaces weights. Leave out one or the other.")
    if data.window is None:
        return corpora
    data.require(bool(weighted), "window", "needs weights: the sizes of streams are unknown. Give each corpus one.")
    for split in ("validation", "test"):
        named = any(getattr(corpus, split) is not None for corpus in corpora)
        data.require(named, "window", f"needs a corpus with {split}: it cannot be cut from a stream")
    parts = apportioned(data.window, [corpus.weight or 0.0 for corpus in trained])
    data.require(min(parts) > 0, "window", "is too small for the weights. Raise it.")
    windows = dict(zip((corpus.name for corpus in trained), parts, strict=True))
    return tuple(dataclasses.replace(corpus, window=windows.get(corpus.name)) for corpus in corpora)


def _require_names(data: DataConfig, names: Sequence[Any]) -> None:
    for name in names:
        data.require(name not in (None, ""), "corpora", "an entry has no name. Give each one, such as name:news.")
        data.require(isinstance(name, str), "corpora", f"the name {name} is no text. Put it in quotes, or choose another.")
        data.require(NAME.fullmatch(name) is not None, "corpora",
                     f"the name {name[:80]!r} must be 1 to 60 letters, digits, - and _. Choose another.")
        data.require(names.count(name) == 1, "corpora", f"two entries have the name {name}. Give each one of its own.")


def as_corpus(data: DataConfig) -> CorpusConfig:
    """Return the options of data as one corpus without a name."""
    options = {field.name: getattr(data, field.name) for field in dataclasses.fields(DataConfig)}
    return CorpusConfig(**options, tags_of_all=data.tags)


def _corpus(data: DataConfig, inherited: Mapping[str, Any], entry: Mapping[str, Any]) -> CorpusConfig:
    """Build an entry; UserError that names it for one that is wrong."""
    train = {"train": "train"} if entry.get("path") else {}
    own = {option: tuple(value) if isinstance(value, list) else value for option, value in entry.items()}
    options = [field.name for field in dataclasses.fields(CorpusConfig) if field.name not in OF_ALL]
    try:
        for option in own:
            if option in OF_ALL:
                raise UserError(f"{option}: holds for all corpora. Set it outside of data.corpora.")
            if option not in options:
                raise UserError(unknown("option", option, options))
        corpus = CorpusConfig(**{**inherited, **train, **own})
        corpus.require(corpus.has_train or corpus.validation is not None or corpus.test is not None, "train",
                       "names no data. Give train, validation, test, path or corpus.")
        corpus.require(corpus.context <= data.context, "context", f"is more than data.context={data.context}")
        corpus.require(corpus.has_train or corpus.weight is None, "weight", "is a share of the training pairs, and it has none")
        corpus.require(corpus.name not in (PARALLEL, BACK), "name", "is reserved for back-translation. Choose another.")
        corpus.require(None in (corpus.corpus, entry.get("train")), "train", "and corpus both name training pairs. Give one.")
        swapped = (corpus.source, corpus.target) == (data.target, data.source)
        corpus.require(bool(data.tags) or not swapped, "source", "and target are swapped. Give the columns as in data.")
        known = not data.tags or set(corpus.directions) <= set(data.directions)
        corpus.require(known, "source", "and target are not among the languages of data.source and data.target")
    except UserError as error:
        raise UserError(f"data.corpora, {entry['name']}: {str(error).removeprefix('data.')}") from error
    return corpus


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` into whole parts in proportion to weights, by the method of largest remainders."""
    quotas = [total * weight / sum(weights) for weight in weights]
    parts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(parts)), key=lambda number: parts[number] - quotas[number])
    for number in by_remainder[: total - sum(parts)]:
        parts[number] += 1
    return parts
