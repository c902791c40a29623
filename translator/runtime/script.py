"""The frame of every script: open streams, a quiet Ctrl-C, and a user's mistake as one line.

Scripts import this module first: its import guards the seconds in which PyTorch and the others are imported.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from translator.runtime.errors import (
    INTERRUPTED_EXIT_CODE,
    USER_ERROR_EXIT_CODE,
    UserError,
    is_out_of_memory,
    no_such_option,
    one_line,
)
from translator.runtime.overrides import ARGS, split_words, take_literally

OTHERS_WAIT = 3  # seconds


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line on stderr and exit code 2 where a user's mistake is raised inside.

    Everything else keeps its traceback: a bug of ours should look like one. A script needs it twice: around its call of
    main, for what Hydra finds wrong, and around all that main does, before Hydra adds words of its own.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing its own report and leaving with 1
    threading.excepthook = _report_once
    sys.argv[1:] = take_literally([*sys.argv[1:], *split_words(os.environ.pop(ARGS, ""))])
    if signal.getsignal(signal.SIGINT) is _leave:  # the imports are over
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
        if trouble := _stdout_trouble():
            raise trouble
    except UserError as error:
        _exit(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # the reader of our stdout has left, as in `... | head`
        _discard_stdout()
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # OSError from Python 3.13 on
            _exit(str(error))
        if {type(error).__module__.split(".")[0], _raised_in(error)} & {"hydra", "omegaconf"}:
            _exit(_misnamed(error.__cause__) or _unquoted(error) or f"configuration: {error}")
        if isinstance(error, FileExistsError | NotADirectoryError):
            _exit(f"{error.filename}: a file stands where a folder is wanted; name another, or move it")
        if isinstance(error, OSError):  # no space, no permission, no such file: the machine's own words say what
            _exit(f"{error.filename or 'stdout, or a file, could not be read or written'}: {error.strerror or error}")
        if is_out_of_memory(error):
            _exit("out of memory. Use smaller batches or models, fewer workers, or a machine with more of it.")
        raise


class _Unfailing(io.FileIO):
    """A stream whose reader may leave, or whose disk may be full: what then cannot be written is dropped.

    No line for a person watching is worth the hours of a training.
    """

    def write(self, data: Any) -> int:
        with suppress(OSError):
            super().write(data)
        return len(data)


def _guard_start() -> None:
    """Open closed streams on the null device, make stderr unfailing, and have Ctrl-C end the imports in one line."""
    for descriptor in range(3):  # the next file opened would take the number of a closed one
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w")):  # Python has None in the place of what was closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 for as long as the process lives
    now: Any = sys.stderr
    if now is None or isinstance(now, io.TextIOWrapper):
        raw = _Unfailing(2, "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=now.encoding if now else "utf-8", errors="backslashreplace", line_buffering=True)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once: an exception might be swallowed, or reworded, by the library that is being imported."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED_EXIT_CODE)


def _stdout_trouble() -> OSError | None:
    """Write what is left for stdout, and return why it cannot be written, if so."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _discard_stdout() -> None:
    """Send stdout, which cannot be written, to the null device: Python flushes it once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _misnamed(cause: BaseException | None) -> str | None:
    """Return what was meant by a name that OmegaConf did not find: Hydra would have it added."""
    group, name = getattr(cause, "parent_node", None), str(getattr(cause, "key", ""))
    if not isinstance(group, Mapping) or not group or name in group:
        return None
    where = str(getattr(cause, "full_key", name)).removesuffix(name)
    return no_such_option(name, where, (str(key) for key in group if key != "hydra"))


def _unquoted(error: Exception) -> str | None:
    """Return what most likely is wrong with an option that Hydra cannot read."""
    name, sign, value = getattr(error, "override", "").partition("=")
    if not sign or value[:1] in {"'", '"'}:
        return None
    return f"{name}={value}: cannot be read. Put quotes around the value: \"{name}='...'\"."


def _raised_in(error: Exception) -> str:
    """Return the package whose code raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).split(".")[0]


def _report_once(thread: threading.ExceptHookArgs) -> None:
    """Stay silent on what fails in TensorBoard's thread: it is raised again in ours."""
    if not issubclass(thread.exc_type, OSError):
        threading.__excepthook__(thread)


def _exit(message: str) -> NoReturn:
    if os.environ.get("RANK", "0") != "0":  # if the first of several processes says the same, it ends us meanwhile
        time.sleep(OTHERS_WAIT)
    print(f"error: {one_line(message)}", file=sys.stderr)
    if _stdout_trouble():
        _discard_stdout()
    sys.exit(USER_ERROR_EXIT_CODE)


_guard_start()
