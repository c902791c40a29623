"""The command `make board`: TensorBoard on one run, or on several to compare, under their names."""

from __future__ import annotations

import io
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

from translator.config.commands import BoardConfig
from translator.runs.finding import chosen_runs, place_of
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.typed import typed

EVENTS = "tensorboard/events.out.tfevents.*"


def open_board(config: BoardConfig) -> None:
    """Serve TensorBoard until a signal ends it."""
    from tensorboard.program import TensorBoard, TensorBoardServerException

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    runs = chosen_runs(config.run, config.runs) if config.run else (watched_last(place_of(config.runs)),)
    with tempfile.TemporaryDirectory(prefix="board-") as folder:
        link_by_name(runs, Path(folder))
        board = TensorBoard()
        board.configure(logdir=folder, host=config.host, port=config.port, reload_interval=15)
        try:
            with redirect_stderr(io.StringIO()):  # it praises its fast loading
                address = board.launch()
        except TensorBoardServerException as error:
            raise UserError(f"host={config.host} port={config.port}: {error}. Name others, as port=0 for any.") from error
        log(f"{', '.join(map(str, runs))}: {address}  Ctrl-C ends")
        signal.pause()


def watched_last(runs: Path) -> Path:
    """Return the run folder whose curves were written last."""
    events = list(runs.glob(f"*/{EVENTS}"))
    if not events:
        raise UserError(f"{runs}: no run with curves here yet. `{typed('train')}` makes one; run=FOLDER names another.")
    return max(events, key=lambda file: file.stat().st_mtime).parents[1]


def link_by_name(runs: Sequence[Path], folder: Path) -> None:
    """Link the curves of each run under its name, by which TensorBoard shows it, or its path where two have one name."""
    places = list(dict.fromkeys(run.resolve() for run in runs))
    names = [place.name for place in places]
    for place, name in zip(places, names, strict=True):
        if not any(place.glob(EVENTS)):
            raise UserError(f"{place}: has no curves. Name the folder of a run that was trained here.")
        link = folder / (name if names.count(name) == 1 else str(place).strip("/"))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(place / "tensorboard")
