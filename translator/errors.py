"""What a user's mistake looks like: one line that says what, where and how to fix it, and exit code 2 (floor 0)."""

from __future__ import annotations

import difflib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
OTHERS_WAIT = 3  # seconds


class UserError(Exception):
    """A mistake the user can mend. The message is one line: what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))  # what it quotes may hold line breaks


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Inside, a mistake the user can mend ends the program with one line on stderr and exit code 2.

    Everything else keeps its traceback: a bug of ours should look like one. A script needs it twice: around its call of
    main, for what Hydra finds wrong, and around all that main does, before Hydra adds words of its own.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing its own report and leaving with 1
    _open_streams()
    threading.excepthook = _told_once
    try:
        yield
    except UserError as error:
        _exit(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # the reader of our stdout has left, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # OSError from Python 3.13 on
            _exit(str(error))
        if {type(error).__module__.split(".")[0], _raised_in(error)} & {"hydra", "omegaconf"}:
            _exit(_misnamed(error.__cause__) or _unquoted(error) or f"configuration: {error}")
        if isinstance(error, FileExistsError | NotADirectoryError):
            _exit(f"{error.filename}: a file stands where a folder is wanted; name another, or move it")
        if isinstance(error, OSError):  # no space, no permission, no such file: the machine's own words say what
            _exit(f"{error.filename or 'a file could not be read or written'}: {error.strerror or error}")
        raise


def no_such_option(name: str, where: str, names: Iterable[str]) -> str:
    """What to tell of an option `where` + `name`, beside which there are options of these names."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"{where}{name}: no such option; " + (f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(names)}")


def one_line(text: str) -> str:
    """`text` with a single space for every run of white space, line breaks among it, and none at its ends."""
    return " ".join(text.split())


def _open_streams() -> None:
    """Have what was closed for this process, as by `<&-`, be there and empty: Python has None in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 for as long as the process lives


def _misnamed(cause: BaseException | None) -> str | None:
    """Of OmegaConf's error about a name that it did not find, what was meant: Hydra would have it added."""
    group, name = getattr(cause, "parent_node", None), str(getattr(cause, "key", ""))
    if not isinstance(group, Mapping) or not group or name in group:
        return None
    where = str(getattr(cause, "full_key", name)).removesuffix(name)
    return no_such_option(name, where, (str(key) for key in group if key != "hydra"))


def _unquoted(error: Exception) -> str | None:
    """Of Hydra's error about an option that it cannot read, what most likely is wrong with it."""
    name, sign, value = getattr(error, "override", "").partition("=")
    if not sign or value[:1] in {"'", '"'}:
        return None
    return f"{name}={value}: cannot be read; letters beyond ASCII and signs other than /._- want quotes: \"{name}='{value}'\""


def _raised_in(error: Exception) -> str:
    """The package whose code raised it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).split(".")[0]


def _told_once(thread: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread, and what fails there is raised again in ours."""
    if not issubclass(thread.exc_type, OSError):
        threading.__excepthook__(thread)


def _exit(message: str) -> NoReturn:
    if os.environ.get("RANK", "0") != "0":  # if the first of several processes says the same, it ends us meanwhile
        time.sleep(OTHERS_WAIT)
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(USER_ERROR_EXIT_CODE)
