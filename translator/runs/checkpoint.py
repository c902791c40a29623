"""The checkpoints of a training: saved whole, read with a look at their sums, resumed from, averaged.

    checkpoints/<update>/  weights.safetensors; for the newest also training.safetensors and state.json, to go on from

Files hold the SHA-256 of what they say, which is looked at whenever they are read.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translator.runtime.atomic_files import Weights, load_tensors, save_tensors, sealed, sync, unsealed, write_text
from translator.runtime.console import log
from translator.runtime.errors import UserError

# Weights, training tensors and state.
Checkpoint = tuple[Weights, Weights, dict[str, Any]]


class Checkpoints:
    """The checkpoints of one run, by update."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, update: int, weights: Weights, training: Weights, state: Mapping[str, Any]) -> None:
        """Write a checkpoint aside, sync it, then rename it into place: a reader never sees half of one.

        Of an update that is saved already only the state is new: what has been validated and recorded since.
        """
        final = self._folder(update)
        if update in self.resumable():
            write_text(final / "state.json", sealed(state))
            return
        shutil.rmtree(final, ignore_errors=True)
        partial = final.with_name(f".{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            save_tensors(partial / "weights.safetensors", weights)
            save_tensors(partial / "training.safetensors", training)
            write_text(partial / "state.json", sealed(state))
            partial.rename(final)
            sync(self.path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def set_aside(self, update: int) -> Path:
        """Rename a damaged checkpoint, so that its update can be saved anew; its new place."""
        damaged = self.path / f"damaged-{update:08d}"
        shutil.rmtree(damaged, ignore_errors=True)
        return self._folder(update).rename(damaged)

    def clear_partial(self) -> None:
        """Remove what a process that was killed while it wrote has left; for the sole user of the folder."""
        for left in self.path.glob(".*.partial"):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def resumable(self) -> list[int]:
        """The updates of the checkpoints that hold all it takes to go on, newest first."""
        return sorted((u for u in self._updates() if (self._folder(u) / "state.json").is_file()), reverse=True)

    def newest_whole(self, read: dict[int, Checkpoint]) -> int | None:
        """The update of the newest checkpoint that is whole, which is left in `read`; None where there is none.

        Damaged ones are set aside, which is said; UserError where no other is left.
        """
        damaged: list[int] = []
        for update in (updates := self.resumable()):
            try:
                read[update] = self.load(update)
            except UserError as damage:
                log(f"warning: {damage}; trying the checkpoint before it")
                damaged.append(update)
                continue
            for other in damaged:
                log(f"warning: set aside as {self.set_aside(other)}")
            return update
        if updates:
            raise UserError(
                f"{self.path}: no checkpoint can be read; put a copy there to go on, or choose another name= to start anew")
        return None

    def load(self, update: int) -> Checkpoint:
        """Weights, training tensors and state of a checkpoint."""
        folder = self._folder(update)
        state = self.load_state(update)
        return load_tensors(folder / "weights.safetensors"), load_tensors(folder / "training.safetensors"), state

    def load_state(self, update: int) -> dict[str, Any]:
        """The state alone of a checkpoint."""
        return unsealed(self._folder(update) / "state.json")

    def readable(self, updates: Sequence[int]) -> list[int]:
        """Those whose weights can be read; of the others it is said."""
        found = []
        for update in updates:
            try:
                load_tensors(self._folder(update) / "weights.safetensors")
                found.append(update)
            except UserError as damage:
                log(f"warning: {damage}; going on without it")
        return found

    def average(self, updates: Sequence[int]) -> Weights:
        """The mean of the weights of several checkpoints."""
        mean: Weights = {}
        for update in updates:
            for name, tensor in load_tensors(self._folder(update) / "weights.safetensors").items():
                mean[name] = mean.get(name, 0) + tensor / len(updates)
        return mean

    def prune(self, *, resumable: int, weights: Sequence[int]) -> None:
        """Keep the newest `resumable` checkpoints whole, the weights of the updates named, and nothing else."""
        whole = self.resumable()[:resumable]
        for update in self._updates():
            folder = self._folder(update)
            if update in whole or folder.is_symlink():  # which leads to what is perhaps another run's
                continue
            if update in weights:
                (folder / "state.json").unlink(missing_ok=True)  # first: without it nobody resumes from here
                (folder / "training.safetensors").unlink(missing_ok=True)
            else:
                shutil.rmtree(folder)

    def _updates(self) -> list[int]:
        """Of which there are checkpoints, whole or not. A folder of another name, such as a copy, is none of ours."""
        names = [path.name for path in self.path.glob("[0-9]*")]
        return [int(name) for name in names if re.fullmatch("[0-9]{8,18}", name) and name == f"{int(name):08d}"]

    def _folder(self, update: int) -> Path:
        return self.path / f"{update:08d}"
