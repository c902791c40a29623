"""The checkpoints of a training, in files that hold the SHA-256 of their content.

    checkpoints/<update>/  weights.safetensors; the newest also training.safetensors and state.json, to resume from
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translator.runtime.atomic_files import Weights, load_tensors, save_tensors, sealed, sync, unsealed, write_text
from translator.runtime.console import log
from translator.runtime.errors import UserError


class Checkpoints:
    """The checkpoints of one run, by update."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, update: int, weights: Weights, training: Weights, state: Mapping[str, Any]) -> None:
        """Write a checkpoint aside, sync it, then rename it into place; of one that was saved before, the state only."""
        final = self._folder(update)
        if update in self.resumable():
            write_text(final / "state.json", sealed(state))
            return
        shutil.rmtree(final, ignore_errors=True)
        partial = final.with_name(f".{final.name}.partial")
        partial.mkdir(parents=True)
        try:
            save_tensors(partial / "weights.safetensors", weights)
            save_tensors(partial / "training.safetensors", training)
            write_text(partial / "state.json", sealed(state))
            partial.rename(final)
            sync(self.path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def resumable(self) -> list[int]:
        """Return the updates that training can be resumed from, newest first."""
        return sorted((u for u in self._updates() if (self._folder(u) / "state.json").is_file()), reverse=True)

    def newest_undamaged(self) -> int | None:
        """Return the newest update to resume from, after renaming damaged ones; None without one."""
        damaged: list[int] = []
        for update in self.resumable():
            try:
                self.load(update)
            except UserError as damage:
                log(f"warning: {damage}; trying the checkpoint before it")
                damaged.append(update)
                continue
            for other in damaged:  # so that these updates can be saved again
                aside = self.path / f"damaged-{other:08d}"
                shutil.rmtree(aside, ignore_errors=True)
                log(f"warning: set aside as {self._folder(other).rename(aside)}")
            return update
        return None

    def load(self, update: int) -> tuple[Weights, Weights, dict[str, Any]]:
        folder = self._folder(update)
        state = self.load_state(update)
        return load_tensors(folder / "weights.safetensors"), load_tensors(folder / "training.safetensors"), state

    def load_state(self, update: int) -> dict[str, Any]:
        return unsealed(self._folder(update) / "state.json")

    def readable(self, updates: Sequence[int]) -> list[int]:
        """Return the updates whose weights can be read, after a warning for each of the others."""
        readable = []
        for update in updates:
            try:
                load_tensors(self._folder(update) / "weights.safetensors")
                readable.append(update)
            except UserError as damage:
                log(f"warning: {damage}; going on without it")
        return readable

    def average(self, updates: Sequence[int]) -> Weights:
        mean: Weights = {}
        for update in updates:
            for name, tensor in load_tensors(self._folder(update) / "weights.safetensors").items():
                mean[name] = mean.get(name, 0) + tensor / len(updates)
        return mean

    def prune(self, *, resumable: int, weights: Sequence[int]) -> None:
        """Delete all but the newest `resumable` checkpoints and the weights of the named updates."""
        newest = self.resumable()[:resumable]
        for update in self._updates():
            folder = self._folder(update)
            if update in newest or folder.is_symlink():  # a link may lead to another run
                continue
            if update in weights:
                (folder / "state.json").unlink(missing_ok=True)  # first: without it nobody resumes from here
                (folder / "training.safetensors").unlink(missing_ok=True)
            else:
                shutil.rmtree(folder)

    def _updates(self) -> list[int]:
        """Return the updates that have a folder; other names, such as of copies, are skipped."""
        names = (path.name for path in self.path.glob("[0-9]*"))
        return [int(name) for name in names if name.isdecimal() and name == self._folder(int(name)).name]

    def _folder(self, update: int) -> Path:
        return self.path / f"{update:08d}"
