"""trackio: a local dashboard, `trackio show`, or a Hugging Face Space that TRACKIO_SPACE_ID names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trackio

from translator.runs.trackers.feed import PROJECT

if TYPE_CHECKING:
    from PIL.Image import Image


class Run:
    """A run of trackio."""

    def __init__(self, name: str, folder: Path, options: Mapping[str, object], known: str | None) -> None:
        """`known`: the id of the run to continue."""
        start = partial(trackio.init, PROJECT, name, config=dict(options), resume="allow" if known else "never", embed=False,
                        auto_log_gpu=False, auto_log_cpu=False)
        self._run = copy_context().run(start)  # else the library finishes it again at exit, and says so on stdout
        self.id: str = self._run.id
        self.is_new = self.id != known
        self.delay = 1.0  # it writes every half second
        known_logs = [] if self.is_new else trackio.SQLiteStorage.get_logs(PROJECT, name, run_id=self.id)
        self._known = {(entry["step"], name) for entry in known_logs for name in entry}

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        if new := {name: value for name, value in values.items() if (update, name) not in self._known}:
            self._run.log(new, step=update)

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        header, *data = map(list, rows)
        self._run.log({name: trackio.Table(columns=header, data=data)}, step=update)

    def attention_map(self, update: int, name: str, picture: Image) -> None:
        self._run.log({name: trackio.Image(picture)}, step=update)

    def finish(self) -> None:
        self._run.finish()
