"""Stopping on SIGINT, SIGTERM or SIGHUP where nothing is half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from translator.runtime.console import log
from translator.runtime.distributed import world_size

# Ctrl-C, a scheduler's or systemd's wish, a terminal that has closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal came; everything up to here is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interruption:
    """A first signal raises Interrupted at once, or after work that must be whole; a second ends the process.

    Of several processes all must stop at the same place: there a signal is only noted, for them to agree on, and a second one
    is no more than torchrun handing on the first.
    """

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that came
        self._in_whole_work = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals so inside. One that is ignored, as SIGHUP by nohup, stays so."""
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._handle) for number in heeded}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Inside is work that must be whole: a signal that comes meanwhile raises Interrupted at its end."""
        self._in_whole_work = True
        try:
            yield
        finally:
            self._in_whole_work = False
        if self.asked is not None and world_size() == 1:
            raise Interrupted(self.asked)

    def _handle(self, number: int, frame: object) -> None:
        if world_size() > 1:
            self.asked = self.asked or number
            return
        if self.asked is not None:  # files take their names when they are whole: there is nothing to tidy up
            log("left at once; the checkpoint before this one stands")
            os._exit(128 + number)
        self.asked = number
        log("stopping: saving a checkpoint first; press Ctrl-C again to leave at once")
        if not self._in_whole_work:
            raise Interrupted(number)
