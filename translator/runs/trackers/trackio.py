"""trackio: a local dashboard, `trackio show`, or a Hugging Face Space that TRACKIO_SPACE_ID names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self._run = trackio.init(PROJECT, name, config=dict(options), resume="allow" if known else "never", embed=False,
                                 auto_log_gpu=False, auto_log_cpu=False)
        self.id: str = self._run.id
        self.is_new = self.id != known
        # It writes every half second: a killed process may not have written what it had sent.
        self.last_update = trackio.SQLiteStorage.get_max_step_for_run(PROJECT, name, run_id=self.id)

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=update)

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        header, *data = map(list, rows)
        self._run.log({name: trackio.Table(columns=header, data=data)}, step=update)

    def attention_map(self, update: int, name: str, picture: Image) -> None:
        self._run.log({name: trackio.Image(picture)}, step=update)

    def finish(self) -> None:
        self._run.finish()
