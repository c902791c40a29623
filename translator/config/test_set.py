"""Where a public test set is: what a file of conf/test_set holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Options


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublicTestSet(Options):
    """Files of a dataset on the hub, or text files of the web; conf/test_set/flores.yaml explains the options."""

    path: str | None = None
    revision: str | None = None
    files: str
    columns: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ()
    skip: str | None = None
    languages: tuple[str, ...] = ()
    citation: str

    def __post_init__(self) -> None:
        self.require((self.path is None) == (not self.columns), "path", "and columns go together. Give both or neither.")
        self.require((self.path is None) == bool(self.languages), "languages", "are for files of the web. Give them or a path.")
