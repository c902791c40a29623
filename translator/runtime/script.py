"""The frame of every script: open streams, a quiet Ctrl-C, and user errors in one line.

Import this module first: its import guards the seconds in which PyTorch and other libraries are imported.
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
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from translator.runtime import errors
from translator.runtime.colour import RED, coloured
from translator.runtime.errors import Interrupted, UserError
from translator.runtime.overrides import split_words, take_literally


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line on stderr and exit code 2 for a user error; a bug keeps its traceback.

    A script needs it twice: around its call of main, for errors of Hydra, and around the work of main, before Hydra rewords
    its errors.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing its own report
    threading.excepthook = _report_once
    if signal.getsignal(signal.SIGINT) is _leave:  # the imports are over
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        from_make = split_words(os.environ.pop("TRANSLATE_ARGS", ""))  # ARGS="..." of make, read by no shell
        sys.argv[1:] = take_literally([*sys.argv[1:], *from_make])
        yield
        sys.stdout.flush()
    except UserError as error:
        _exit(str(error))
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(errors.INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # the reader of stdout has left, as in `... | head`
        _discard_stdout()
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # OSError from Python 3.13 on
            _exit(str(error))
        if problem := _problem_of_hydra(error):
            _exit(problem)
        if isinstance(error, OSError):  # no space, no permission, no such file: the system's message says which
            _exit(f"{error.filename or 'stdout, or a file, could not be read or written'}: {error.strerror or error}")
        if errors.is_out_of_memory(error):
            _exit("out of memory. Use smaller batches or models, fewer workers, or a machine with more of it.")
        raise


@contextmanager
def hydra_as_user_errors() -> Iterator[None]:
    """Raise UserError in place of Hydra's errors, for a use from Python."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if problem := _problem_of_hydra(error):
            raise UserError(problem) from error
        raise


class _Unfailing(io.FileIO):
    """A stream that drops what cannot be written: no log line is worth the hours of a training."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            super().write(data)
        return len(data)


def _guard_start() -> None:
    """Open closed streams on the null device, make stderr unfailing, and let Ctrl-C end the imports in one line."""
    for descriptor in range(3):  # the next file to be opened would take the number of a closed one
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w")):  # None where a stream was closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 for as long as the process lives
    stderr: Any = sys.stderr
    if stderr is None or isinstance(stderr, io.TextIOWrapper):
        raw, encoding = _Unfailing(2, "w", closefd=False), stderr.encoding if stderr else "utf-8"
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=True)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process: a library that is being imported might swallow or reword an exception."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(errors.INTERRUPTED_EXIT_CODE)


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout once more at the end


def _problem_of_hydra(error: Exception) -> str | None:
    """Return the message for an error of Hydra or OmegaConf; None for any other."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)  # where it was raised
    if not {name.split(".")[0] for name in (type(error).__module__, frame.f_globals["__name__"])} & {"hydra", "omegaconf"}:
        return None
    known = _no_option(error) or _unreadable(error) or _misnamed(error.__cause__) or _no_preset(error)
    return known or f"configuration: {error}"


def _no_option(error: Exception) -> str | None:
    """Return the message for a word without an equals sign."""
    word = getattr(error, "override", None)
    return f"{word}: is no option. Write OPTION=VALUE." if isinstance(word, str) and "=" not in word else None


def _unreadable(error: Exception) -> str | None:
    """Return the message for a value that breaks Hydra's grammar."""
    word = getattr(error, "override", None)
    return f"{word}: cannot be read. Close each bracket, and put text with spaces or special characters in quotes, " \
        "as in [{name:'é'}], and the whole option in others." if isinstance(word, str) else None


def _misnamed(cause: BaseException | None) -> str | None:
    """Return the message for a name that OmegaConf did not find: Hydra would advise to add it."""
    group, name = getattr(cause, "parent_node", None), str(getattr(cause, "key", ""))
    if not isinstance(group, Mapping) or not group or name in group:
        return None
    where = str(getattr(cause, "full_key", name)).removesuffix(name)
    return errors.unknown("option", name, (str(key) for key in group if key != "hydra"), where)


def _no_preset(error: Exception) -> str | None:
    """Return the message for a preset that Hydra did not find, such as model=tinny."""
    group, slash, name = (getattr(error, "missing_cfg_file", None) or "").partition("/")
    if not slash:
        return None
    if group == "data" and Path(name).is_file():
        return f"data={name}: is a file, not a preset. Write data=files data.train={name}"
    if group == "data" and ("/" in name or Path(name).is_dir()):
        return f"data={name}: no such preset. For a folder, or a data set of the hub, write data.path={name}"
    return errors.unknown("preset", name, getattr(error, "options", ()), f"{group}=")


def _report_once(thread: threading.ExceptHookArgs) -> None:
    """Ignore errors of TensorBoard's thread: they are raised again in the main thread."""
    if not issubclass(thread.exc_type, OSError):
        threading.__excepthook__(thread)


def _exit(message: str) -> NoReturn:
    if os.environ.get("RANK", "0") != "0":  # the main process may say the same and end this one
        time.sleep(3)
    print(coloured("error:", RED), errors.one_line(message), file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    sys.exit(errors.USER_ERROR_EXIT_CODE)


_guard_start()
