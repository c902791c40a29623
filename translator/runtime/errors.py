"""Errors that end a command: what is wrong in one line, where, and how to fix it; and a signal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
# Messages of allocators that have no exception of their own.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


class UserError(Exception):
    """A mistake that the user can fix. The message is one line: what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))  # what it quotes may hold line breaks


class Interrupted(Exception):
    """A signal came; all work up to here is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of any allocator or library means out of memory."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or any(
        sign in str(error) for sign in OUT_OF_MEMORY)


def unknown(kind: str, name: str, names: Iterable[str], where: str = "") -> str:
    """Return the message for a name that does not exist, written `where` + `name`, with the nearest existing one."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"{where}{name}: no such {kind}; " + (f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(names)}")


def one_line(text: str) -> str:
    """Return text with each run of white space, also line breaks, as one space."""
    return " ".join(text.split())
