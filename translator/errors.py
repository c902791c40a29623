"""What a user's mistake looks like: one line that says what, where and how to fix it, and exit code 2 (floor 0)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

USER_ERROR_EXIT_CODE = 2


class UserError(Exception):
    """A mistake the user can mend. The message is one line: what is wrong, where, and what to do."""


def run_command(main: Callable[[], None]) -> None:
    """Run a script's `main`; a mistake the user can mend ends it with one line on stderr and exit code 2.

    Everything else keeps its traceback: a bug of ours should look like one.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing its own report and leaving with 1
    try:
        main()
    except UserError as error:
        _exit(str(error))
    except BrokenPipeError:  # the reader of our stdout has left, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if type(error).__module__.startswith(("hydra", "omegaconf")):
            _exit(f"configuration: {error}")
        if isinstance(error, OSError):  # no space, no permission, no such file: the machine's own words say what
            _exit(f"{error.filename or 'system'}: {error.strerror or error}")
        raise


def one_line(text: str) -> str:
    """`text` with every run of white space, line breaks among them, as a single space."""
    return " ".join(text.split())


def _exit(message: str) -> None:
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(USER_ERROR_EXIT_CODE)
