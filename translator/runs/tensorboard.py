"""Record measurements in metrics.jsonl and TensorBoard, and send them to a tracking service."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from translator.config.building import by_dotted_name
from translator.config.options import RunConfig
from translator.runs.trackers.feed import open_feed
from translator.runs.training_state import History, Metrics
from translator.runtime.atomic_files import read_plain, sync, writing
from translator.runtime.console import log
from translator.runtime.errors import UserError

# Groups of options that shape a model: TensorBoard's HParams compares runs by them.
SHAPING = ("seed", "init", "precision", "data", "tokenizer", "model", "optim", "train")


class Tracker:
    """Records measurements by update."""

    def __init__(self, metrics_file: Path, tensorboard: Path, recorded: Mapping[str, int], config: RunConfig | None = None,
                 ) -> None:
        """Cut the files back to `recorded`, the sizes that `flush` returned at the last checkpoint.

        `config`: names the service to send to besides, which also gets what metrics.jsonl has of earlier updates.
        """
        self.metrics_file, self.tensorboard = metrics_file, tensorboard
        for file in self._files():
            if file.is_symlink():
                raise UserError(f"{file}: is a link, and the file it leads to would be cut. Replace it by that file.")
            if file.name in recorded:
                os.truncate(file, min(recorded[file.name], file.stat().st_size))
            else:
                file.unlink()
        left = {file.name: file.stat().st_size for file in self._files()}
        for name, size in recorded.items():
            if left.get(name, 0) < size:
                log(f"warning: {name}: was cut or removed since the last checkpoint: its measurements are lost, no weights")
        self._writer = SummaryWriter(str(tensorboard), flush_secs=10)
        self._writer.add_custom_scalars(_layout())
        self._options = {} if config is None else by_dotted_name(config)
        self._feed = None if config is None else open_feed(config.tracker, config.name, metrics_file.parent, self._options)
        if self._feed:
            for line in filter(None, _measured(metrics_file)):
                self._feed.scalars(*line)

    def flush(self) -> dict[str, int]:
        """Write everything to disk; return the bytes of each file, by name."""
        with self._writing():
            self._writer.flush()
            if self.metrics_file.is_file():
                sync(self.metrics_file)
        return {file.name: file.stat().st_size for file in self._files()}

    def _files(self) -> list[Path]:
        events = sorted(self.tensorboard.glob("events.out.tfevents.*"))
        return [self.metrics_file, *events] if self.metrics_file.exists() else events

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        """Append one line {"update": ..., name: value, ...} to metrics.jsonl, and each value to its TensorBoard curve."""
        with self._writing():
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"update": update, **values}) + "\n")
            for name, value in values.items():
                self._writer.add_scalar(name, value, update)
        if self._feed:
            self._feed.scalars(update, values)

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        """Show rows of text in TensorBoard; the first is the header."""
        header, *others = (f"| {' | '.join(map(_literal, row))} |" for row in rows)
        with self._writing():
            self._writer.add_text(name, "\n".join([header, "|---" * len(rows[0]) + "|", *others]), update)
        if self._feed:
            self._feed.table(update, name, rows)

    def attention_map(self, update: int, name: str, weights: Tensor, source: Sequence[str], target: Sequence[str]) -> None:
        """Draw attention weights (H, T, S), one panel a head, with the pieces along the axes."""
        from translator.runs.plots import draw_attention

        panels = {f"head {number}": head for number, head in enumerate(weights, start=1)}
        try:
            figure = draw_attention(panels, source, target, columns=min(4, len(panels)))
        except UserError as error:  # too large
            log(f"warning: {error}")
            return
        if self._feed:
            self._feed.attention_map(update, name, figure)
        with self._writing():
            self._writer.add_figure(name, figure, update)

    def end(self, update: int, metrics: Metrics) -> None:
        """Record the scores of the weights that were kept, and show them in TensorBoard's HParams beside the options."""
        final = {f"final/{name}": value for name, value in metrics.items()}
        options = {name: value if isinstance(value, bool | int | float) else str(value)
                   for name, value in self._options.items() if name.split(".")[0] in SHAPING}
        with self._writing():
            for summary in hparams(options, final):
                self._writer._get_file_writer().add_summary(summary)
            for name, value in final.items():
                self._writer.add_scalar(name, value, update)
        if self._feed:
            self._feed.scalars(update, final)

    def close(self) -> None:
        with suppress(OSError):  # everything was flushed with the last checkpoint
            self._writer.close()
        if self._feed:
            self._feed.close()

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.metrics_file.parent, "The same command resumes from the last checkpoint.")


def _literal(text: str) -> str:
    """Escape text for a cell of a Markdown table: data must not load images or break the table."""
    return re.sub(r"[\\`*_\[\]!|<>&~]", lambda match: f"&#{ord(match[0])};", " ".join(text.split()))


def _layout() -> dict[str, dict[str, list[Any]]]:
    """Return TensorBoard's custom scalars: the charts of a report, scores and losses first."""
    from translator.runs.plots import LOSSES, PANELS, SCORES

    ordered = sorted(PANELS, key=lambda title: (title != SCORES, title != LOSSES))
    return {"Training": {title: ["Multiline", list(PANELS[title])] for title in ordered}}


def read_history(metrics_file: Path) -> tuple[History, int]:
    """Return the (update, value) pairs of each measurement, and the number of unreadable lines."""
    history, unreadable = defaultdict[str, list[tuple[float, float]]](list), 0
    for line in _measured(metrics_file):
        if line is None:
            unreadable += 1
            continue
        update, values = line
        for name, value in values.items():
            history[name].append((update, value))
    return history, unreadable


def _measured(metrics_file: Path) -> Iterator[tuple[int, dict[str, float]] | None]:
    """Yield the update and the values of each line; None where it is unreadable."""
    for line in read_plain(metrics_file, 1 << 31).splitlines() if metrics_file.is_file() else ():
        try:
            values = {str(name): float(value) for name, value in json.loads(line).items()}
            yield int(values.pop("update")), values
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            yield None
