"""The base of all options: frozen dataclasses that pydantic checks, with one-line errors that name the option."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from translator.runtime.errors import UserError

# An integer passes as a float, a bool is no number, text is no number either.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
Whole = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options:
    """Options by name. UserError for an unknown name, a missing option, and a value of the wrong type or out of bounds."""

    GROUP = ""  # precedes an option's name in errors, such as "model."

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            raise UserError(cls._explain(error.errors())) from None

    @classmethod
    def _explain(cls, errors: list[ErrorDetails]) -> str:
        """Return what is wrong with the first wrong option. One that may be of several types has an error for each."""
        name = str(errors[0]["loc"][0])
        if errors[0]["type"] == "missing":
            return f"{cls.GROUP}{name}: this option is missing"
        errors = [error for error in errors if error["loc"][0] == name]
        depth = max(len(error["loc"]) for error in errors)  # the type that fits best is looked into deepest
        closest = [error for error in errors if len(error["loc"]) == depth]
        rules = dict.fromkeys(
            re.sub(r"^\w+ should | after validation.*", "", error["msg"]).replace("tuple", "list") for error in closest)
        return f"{cls.GROUP}{name}: must {' or '.join(rules)}, got {closest[0]['input']!r}"

    def require(self, holds: bool, option: str, rule: str) -> None:
        """Raise UserError where an option breaks a rule."""
        if not holds:
            raise UserError(f"{self.GROUP}{option}: {rule}")
