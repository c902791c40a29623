"""Stop on SIGINT, SIGTERM or SIGHUP at a point where all is saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from translator.runtime.console import log
from translator.runtime.distributed import world_size
from translator.runtime.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a scheduler or systemd, a closed terminal


class Interruption:
    """Raise Interrupted on the first signal, after work that must be complete; end the process on the second.

    Several processes must stop at the same place: there a signal is only noted, for them to agree on, and a second one is
    torchrun's copy of the first.
    """

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that came
        self._busy = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals inside. One that is ignored, as SIGHUP by nohup, stays ignored."""
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._handle) for number in heeded}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Put off a signal until the work inside is complete."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self.asked is not None and world_size() == 1:
            raise Interrupted(self.asked)

    def _handle(self, number: int, frame: object) -> None:
        if world_size() > 1:
            self.asked = self.asked or number
            return
        if self.asked is not None:  # files are renamed when complete: nothing to clean up
            log("left at once; the checkpoint before this one stands")
            os._exit(128 + number)
        self.asked = number
        log("stopping: saving a checkpoint first; press Ctrl-C again to leave at once")
        if not self._busy:
            raise Interrupted(number)
