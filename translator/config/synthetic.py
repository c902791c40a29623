"""The options of training pairs that models make: conf/data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Options, Run, Runs

# Names of the parts of the training pairs, where one is back-translated.
PARALLEL, BACK = "parallel", "back-translated"

OpenShare = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SyntheticOptions(Options):
    """A teacher's translations of the sources, and back-translations of monolingual text."""
    GROUP = "data."

    teacher: Runs = None
    taught: Literal["only", "both"] = "only"
    monolingual: Run | None = None
    reverse: Runs = None
    monolingual_share: OpenShare = 0.5

    @property
    def is_synthetic(self) -> bool:
        """Whether a model makes some of the training pairs."""
        return self.teacher is not None or self.monolingual is not None

    def require_possible(self, *, streamed: bool, directions: int) -> None:
        """Raise UserError where these options contradict each other, or the data."""
        option = "monolingual" if self.teacher is None else "teacher"
        self.require(not (streamed and self.is_synthetic), option, "needs prepared data. Set data.window=null.")
        self.require(self.teacher is not None or self.taught == "only", "taught", "needs data.teacher. Name a run.")
        self.require((self.monolingual is None) == (self.reverse is None), "monolingual",
                     "and data.reverse go together. Give both or neither.")
        self.require(self.monolingual is None or directions == 1, "monolingual",
                     "is for one source and one target language. Name one in data.source and one in data.target.")
