"""Send a training's measurements to a tracking service, in the background and each point once."""

from __future__ import annotations

import io
import json
import queue
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from translator.runtime.atomic_files import read_plain, write_text
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.typed import installation

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

PROJECT = "translator"  # that runs are grouped in, unless the service's own environment variable names another
MOST_WAITING = 10_000  # measurements kept in memory while a service does not answer
CLOSING_SECONDS = 30


class Service(Protocol):
    """A training at a tracking service. Any call may raise any error and take any time."""

    id: str  # finds it again when the training is resumed
    is_new: bool  # the service knows no point of it
    delay: float  # seconds after which a point is kept even if this process is killed

    def scalars(self, update: int, values: Mapping[str, float]) -> None: ...

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None: ...

    def attention_map(self, update: int, name: str, picture: Image) -> None: ...

    def finish(self) -> None: ...


class _Item(NamedTuple):
    update: int
    names: Sequence[str]
    send: Callable[[list[str]], None]  # of the names not sent before
    retried: bool


class Feed:
    """Sends measurements to a service in a thread of its own: neither errors nor waiting reach the training."""

    def __init__(self, service: Service, tracker: str, record: Path, sent: Mapping[str, int]) -> None:
        """`record`: the file that keeps `sent`, the newest update the service has of each measurement."""
        self._service, self._tracker, self._record = service, tracker, record
        self._sent = {} if service.is_new else dict(sent)
        self._write(self._sent)
        self._earlier = time.monotonic(), dict(self._sent)
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        self._put(update, list(values), lambda new: self._service.scalars(update, {name: values[name] for name in new}), True)

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        self._put(update, [name], lambda _: self._service.table(update, name, rows), False)

    def attention_map(self, update: int, name: str, figure: Figure) -> None:
        from PIL import Image

        from translator.runs.plots import png

        picture = Image.open(io.BytesIO(png(figure)))  # now: a figure is not for two threads
        self._put(update, [name], lambda _: self._service.attention_map(update, name, picture), False)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            self._warn(TimeoutError(f"no answer in {CLOSING_SECONDS} seconds"))

    def _put(self, update: int, names: Sequence[str], send: Callable[[list[str]], None], retried: bool) -> None:
        if self._queue.qsize() < MOST_WAITING:
            self._queue.put(_Item(update, names, send, retried))

    def _work(self) -> None:
        waiting = deque[_Item]()
        while (item := self._queue.get()) is not None:
            if len(waiting) < MOST_WAITING:  # a later start of the training sends the others
                waiting.append(item)
            self._send(waiting)
        self._send(waiting)
        with redirect_stdout(sys.stderr):
            if self._attempt(self._service.finish):
                self._attempt(lambda: self._write(self._sent))

    def _send(self, waiting: deque[_Item]) -> None:
        """Send what waits, oldest first, up to a measurement that fails: it is tried again with the next."""
        while waiting:
            item = waiting[0]
            new = [name for name in item.names if self._sent.get(name, -1) < item.update]
            if new and self._attempt(lambda item=item, new=new: item.send(new)):  # type: ignore[misc]
                self._sent |= dict.fromkeys(new, item.update)
                self._attempt(self._keep)
            elif new and item.retried:
                return
            waiting.popleft()

    def _keep(self) -> None:
        """Record what the service had `delay` seconds ago: after a kill the rest is sent again."""
        taken, sent = self._earlier
        if time.monotonic() - taken >= self._service.delay:
            self._write(sent if self._service.delay else self._sent)
            self._earlier = time.monotonic(), dict(self._sent)

    def _write(self, sent: Mapping[str, int]) -> None:
        write_text(self._record, json.dumps({"tracker": self._tracker, "id": self._service.id, "sent": sent}) + "\n")

    def _attempt(self, call: Callable[[], None]) -> bool:
        """Call, and return whether it succeeded; warn once of errors in a row."""
        try:
            call()
        except Exception as error:
            if not self._failed:
                self._warn(error)
            self._failed = True
            return False
        self._failed = False
        return True

    def _warn(self, error: Exception) -> None:
        log(_warning(self._tracker, error))


def require_tracker(tracker: str) -> None:
    """Raise UserError where the library of a tracker is not installed."""
    if tracker != "tensorboard" and find_spec(tracker) is None:
        raise UserError(f"tracker={tracker}: {tracker} is not installed. Install it with `{installation(tracker)}`.")


def open_feed(tracker: str, name: str, folder: Path, options: Mapping[str, object]) -> Feed | None:
    """Begin or continue the tracked run of a run folder; None where there is no service, or it cannot be reached."""
    if tracker == "tensorboard":
        return None
    record = folder / ".tracker.json"
    known, sent = _recorded(record, tracker)
    try:
        service = import_module(f"translator.runs.trackers.{tracker}").Run
        with redirect_stdout(sys.stderr):
            return Feed(service(name, folder, options, known), tracker, record, sent)
    except Exception as error:
        log(_warning(tracker, error))
        return None


def _warning(tracker: str, error: Exception) -> str:
    return (f"warning: tracker={tracker}: {' '.join(str(error).split())[:300] or type(error).__name__}. Training continues; "
            "metrics.jsonl has all measurements. Resuming the run sends the ones that are missing.")


def _recorded(record: Path, tracker: str) -> tuple[str | None, dict[str, int]]:
    """Return the id of the tracked run and what was sent to it; None and nothing where the file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        content = json.loads(read_plain(record))
        if content["tracker"] == tracker and re.fullmatch(r"[\w-]{1,64}", content["id"]):
            return content["id"], {str(name): int(update) for name, update in content["sent"].items()}
    return None, {}
