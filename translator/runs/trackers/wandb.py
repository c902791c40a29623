"""Weights & Biases: `WANDB_MODE=offline` writes to the run folder, for `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import wandb

from translator.runs.trackers.feed import PROJECT

if TYPE_CHECKING:
    from PIL.Image import Image


# Seconds until a point is in the file of an offline run, and until it has surely reached the server.
FLUSHED, UPLOADED = 0.5, 30.0


class Run:
    """A run at Weights & Biases, in the project WANDB_PROJECT."""

    def __init__(self, name: str, folder: Path, options: Mapping[str, object], known: str | None) -> None:
        """`known`: the id of the run to continue."""
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT, name=name, dir=str(folder), config=dict(options),
            id=known, resume="allow", allow_val_change=True,
            settings=wandb.Settings(console="off", x_transaction_log_flush_interval=FLUSHED))
        self.id: str = self._run.id
        self.is_new = known is None or not (self._run.offline or self._run.resumed)
        # Of points that are sent twice, the server ignores the second.
        self.delay = 2 * FLUSHED if self._run.offline else UPLOADED

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=update)

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        header, *data = map(list, rows)
        self._run.log({name: wandb.Table(columns=header, data=data)}, step=update)

    def attention_map(self, update: int, name: str, picture: Image) -> None:
        self._run.log({name: wandb.Image(picture)}, step=update)

    def finish(self) -> None:
        self._run.finish()
