"""The options of the data: conf/data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from translator.config.augmentation import AugmentConfig
from translator.config.building import STRICT, Count, Share
from translator.config.languages import is_tag, tag_of
from translator.config.named_corpus import NamedCorpusOptions
from translator.config.synthetic import SyntheticOptions

Text = Annotated[str, Field(min_length=1)]
# A split or a table, or [SOURCES,TARGETS]; a list of one is that one.
Files = Annotated[
    Text | Annotated[tuple[Text, ...], Field(min_length=2, max_length=2)],
    BeforeValidator(lambda value: value[0] if isinstance(value, tuple) and len(value) == 1 else value)]

# Options that say where one corpus is. Where data.corpora holds several, only its entries have them.
LOCATION = ("path", "config", "revision", "folder", "train", "validation", "test", "corpus", "version", "score", "min_score")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig(NamedCorpusOptions, SyntheticOptions):
    """Where the sentence pairs come from: conf/data."""

    path: Text | None
    config: str | None
    revision: str | None
    folder: str | None
    train: Files | None
    validation: Files | None
    test: Files | None
    source: str
    target: str
    holdout: Count
    limit: Count | None
    window: Count | None = None
    max_characters: Count
    max_ratio: Annotated[float, Field(ge=1)]
    overlap: Literal["any", "source"] = "any"
    drop_copies: bool = False
    match_numbers: Literal["lenient", "strict"] | None = None
    match_addresses: bool = False
    match_markup: Literal["lenient", "strict"] | None = None
    max_repeats: Annotated[int, Field(ge=2, le=1000)] | None = None
    min_letters: Share = 0.0
    foreign_odds: Annotated[float, Field(ge=1, le=1e6)] | None = None
    cache: Text
    workers: Count | None = None
    augment: AugmentConfig = AugmentConfig()
    context: Annotated[int, Field(ge=0, le=100)] = 0  # more would fill memory with copies of a long document
    score: Text | None = None
    min_score: float | None = None
    corpora: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = None
    temperature: Annotated[float, Field(ge=1, le=1000)] | None = None

    def __post_init__(self) -> None:
        for side in ("source", "target"):
            names = getattr(self, side).split("+")
            self.require(all(names) and len(set(names)) == len(names), side, "must be one name, or several joined by +")
        self.require(all(map(is_tag, self.tags)), "target", "must join names without spaces, < and >")
        self.require(bool(self.directions), "source", "is the same as data.target. Name two languages or columns.")
        self.require(self.window is None or self.holds_out, "window",
                     "needs data.validation and data.test: they cannot be cut from a stream")
        self.require(self.window is None or self.limit is None, "limit",
                     "does not apply to a stream. Set data.window=null to prepare the data first.")
        self.require_corpus(self.source, self.target)
        files = any(isinstance(value, tuple) for value in (self.train, self.validation, self.test))
        self.require(len(self.directions) == 1 or not files, "source",
                     "names several languages, but files of lines hold one each. Give a file of columns.")
        self.require((self.score is None) == (self.min_score is None), "score",
                     "and data.min_score go together. Give both or neither.")
        self.require(self.score is None or not isinstance(self.train, tuple), "score",
                     "is a column, which two text files lack. Give a table.")
        self.require(not self.context or len(self.directions) == 1, "context", "is for one language a side. Set it to 0.")
        self.require(not self.context or self.teacher is None, "teacher",
                     "translates sentences without context. Leave it out, or set data.context=0.")
        for option in LOCATION if self.corpora is not None else ():
            self.require(getattr(self, option) is None, option,
                         "says where one corpus is. Put it into an entry of data.corpora, and give data=mix.")
        self.require(self.temperature is None or self.corpora is not None, "temperature", "needs data.corpora.")
        self.require(self.has_train or not self.needs_train, "train",
                     "names no data. Give data.train=FILE, or a split of data.path, or data.corpus, or data.corpora.")
        self.require(self.corpora is None or self.teacher is None, "teacher", "translates one corpus. Leave out data.corpora.")
        self.require_possible(streamed=self.window is not None, directions=len(self.directions))

    @property
    def has_train(self) -> bool:
        """Whether training pairs are named."""
        return self.train is not None or self.corpus is not None

    @property
    def needs_train(self) -> bool:
        """Whether `train` must name the training pairs."""
        return self.corpora is None

    @property
    def holds_out(self) -> bool:
        """Whether validation and test are named, not cut from train."""
        return self.corpora is not None or (self.validation is not None and self.test is not None)

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """The languages to translate from and to: where there are several, every two that differ."""
        return tuple((s, t) for s in self.source.split("+") for t in self.target.split("+") if s != t)

    @property
    def language(self) -> str:
        """The language to translate to; empty where there are several."""
        return "" if self.tags else self.directions[0][1]

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the languages to translate to; none where there is one language only."""
        reached = {target for _, target in self.directions}
        targets = [target for target in self.target.split("+") if target in reached]
        return tuple(tag_of(target).strip() for target in targets) if len(targets) > 1 else ()
