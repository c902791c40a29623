"""Record measurements in metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from translator.runs.training_state import History
from translator.runtime.atomic_files import read_plain, sync, writing
from translator.runtime.console import log
from translator.runtime.errors import UserError


class Tracker:
    """Records measurements by update."""

    def __init__(self, metrics_file: Path, tensorboard: Path, recorded: Mapping[str, int]) -> None:
        """Cut the files back to `recorded`, the sizes that `flush` returned at the last checkpoint."""
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

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        """Show rows of text in TensorBoard; the first is the header."""
        header, *others = (f"| {' | '.join(map(_literal, row))} |" for row in rows)
        with self._writing():
            self._writer.add_text(name, "\n".join([header, "|---" * len(rows[0]) + "|", *others]), update)

    def attention_map(self, update: int, name: str, weights: Tensor, source: Sequence[str], target: Sequence[str]) -> None:
        """Draw attention weights (H, T, S), one panel a head, with the pieces along the axes."""
        from translator.runs.plots import draw_attention

        panels = {f"head {number}": head for number, head in enumerate(weights, start=1)}
        try:
            figure = draw_attention(panels, source, target, columns=min(4, len(panels)))
        except UserError as error:  # too large
            log(f"warning: {error}")
            return
        with self._writing():
            self._writer.add_figure(name, figure, update)

    def close(self) -> None:
        with suppress(OSError):  # everything was flushed with the last checkpoint
            self._writer.close()

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.metrics_file.parent, "The same command resumes from the last checkpoint.")


def _literal(text: str) -> str:
    """Escape text for a cell of a Markdown table: data must not load images or break the table."""
    return re.sub(r"[\\`*_\[\]!|<>&~]", lambda match: f"&#{ord(match[0])};", " ".join(text.split()))


def read_history(metrics_file: Path) -> tuple[History, int]:
    """Return the (update, value) pairs of each measurement, and the number of unreadable lines."""
    history, unreadable = defaultdict[str, list[tuple[float, float]]](list), 0
    for line in read_plain(metrics_file, 1 << 31).splitlines() if metrics_file.is_file() else ():
        try:
            values = {str(name): float(value) for name, value in json.loads(line).items()}
            update = values.pop("update")
            for name, value in values.items():
                history[name].append((update, value))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            unreadable += 1
    return history, unreadable
