"""A user's mistake: one line that says what, where and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
# How allocators that have no exception of their own say that memory does not suffice.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


class UserError(Exception):
    """A mistake that the user can fix. The message is one line: what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))  # what it quotes may hold line breaks


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory did not suffice, by whichever allocator or library it was raised."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or any(
        sign in str(error) for sign in OUT_OF_MEMORY)


def no_such_option(name: str, where: str, names: Iterable[str]) -> str:
    """Return the message for an option `where` + `name`, beside which there are options of these names."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"{where}{name}: no such option; " + (f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(names)}")


def one_line(text: str) -> str:
    """Return `text` with a single space for every run of white space, line breaks among it, and none at its ends."""
    return " ".join(text.split())
