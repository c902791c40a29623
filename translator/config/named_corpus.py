"""The options of a corpus that is downloaded by its name: conf/data."""

from __future__ import annotations

import re

from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Options
from translator.runtime.typed import typed

NAME = re.compile(r"\w[\w.+-]*")  # part of a path and of an address
MTDATA_ID = re.compile(r"\w+-[\w.]+-[\w.]+-[a-z]{3}\w*-[a-z]{3}\w*")  # group-name-version-language-language


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NamedCorpusOptions(Options):
    """A corpus of OPUS or mtdata, and the folder for downloads."""
    GROUP = "data."

    corpus: str | None = None
    version: str | None = None
    downloads: str = "data/corpora"

    def require_corpus(self, *languages: str) -> None:
        """Raise UserError where `corpus`, if given, or the languages of its pairs cannot be names."""
        if self.corpus is None:
            return
        self.require(NAME.fullmatch(self.corpus) is not None, "corpus",
                     f"must be a name, got {self.corpus!r}. `{typed('corpora', source='en', target='de')}` lists some.")
        self.require(self.version is None or NAME.fullmatch(self.version) is not None, "version",
                     f"must be a name such as v2, got {self.version!r}")
        self.require(self.version is None or not self.is_of_mtdata, "version", "is part of an mtdata id. Set it to null.")
        self.require(bool(self.downloads), "downloads", "is empty. Name a folder.")
        for side, language in zip(("source", "target"), languages, strict=True):
            self.require(NAME.fullmatch(language) is not None and "+" not in language, side,
                         "must be the code of one language: a corpus by name has pairs of two.")

    @property
    def is_of_mtdata(self) -> bool:
        """Whether `corpus` is an id of mtdata, such as Statmt-europarl-10-deu-eng, and not a name of OPUS."""
        return MTDATA_ID.fullmatch(self.corpus or "") is not None
