"""A run folder's files: what stands where, atomic writes, verified loads, averaged weights (floor 4).

    runs/<name>/
      config.yaml            the resolved options
      tokenizer.model        or tokenizer.source.model and tokenizer.target.model
      data_report.json       what was read, kept and dropped
      model.safetensors      the weights to translate with: the best so far, the chosen ones at the end
      outcome.json           which weights those are, once training has ended
      metrics.jsonl          one line a measurement
      tensorboard/           the same as curves, with samples and attention maps
      checkpoints/<update>/  weights.safetensors; for the newest also training.safetensors and state.json, to go on from

Tensors are safetensors and the rest is text: nothing here is ever unpickled.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from translator.config import RunConfig, load_config, to_yaml
from translator.errors import UserError
from translator.tokenizer import Tokenizer

Weights = dict[str, Tensor]


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.model_file = self.path / "model.safetensors"
        self.metrics_file = self.path / "metrics.jsonl"
        self.report_file = self.path / "data_report.json"
        self.outcome_file = self.path / "outcome.json"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"

    def create(self, config: RunConfig, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        """Lay the folder out. config.yaml comes last: a folder that has one has the rest."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        source, target = tokenizers
        if source is target:
            write_bytes(self.path / "tokenizer.model", source.model)
        else:
            write_bytes(self.path / "tokenizer.source.model", source.model)
            write_bytes(self.path / "tokenizer.target.model", target.model)
        write_text(self.report_file, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
        write_text(self.config_file, to_yaml(config))

    def load_config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise UserError(f"{self.path}: no run folder here (it has no config.yaml); `make train` makes one")
        return load_config(RunConfig, self.config_file)

    def load_tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """The source's and the target's tokenizer: one and the same where they are joint."""
        joint = self.path / "tokenizer.model"
        if joint.is_file():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        return Tokenizer.load(self.path / "tokenizer.source.model"), Tokenizer.load(self.path / "tokenizer.target.model")

    def longest_source(self) -> int | None:
        """Tokens of the longest source sentence that it was trained on; None where its report does not say."""
        try:
            report = json.loads(self.report_file.read_text(encoding="utf-8"))
            return int(report["splits"]["train"]["source_longest"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def load_weights(self) -> Weights:
        """The weights to translate with."""
        if not self.model_file.is_file():
            raise UserError(f"{self.path}: no weights yet; they are written at the first validation of a training")
        return load_tensors(self.model_file)

    def save_outcome(self, outcome: Mapping[str, Any]) -> None:
        write_text(self.outcome_file, json.dumps(outcome, indent=1) + "\n")

    def load_outcome(self) -> dict[str, Any] | None:
        """What `save_outcome` was given; None while training has not ended, or where it is damaged: it can be made again."""
        try:
            return json.loads(self.outcome_file.read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def save_checkpoint(self, update: int, weights: Weights, training: Weights, state: Mapping[str, Any]) -> None:
        """Write a checkpoint aside, sync it, then rename it into place: a reader never sees half of one."""
        final = self._checkpoint(update)
        partial = final.with_name(f".{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_tensors(partial / "weights.safetensors", weights)
        save_tensors(partial / "training.safetensors", training)
        write_text(partial / "state.json", json.dumps(state, indent=1) + "\n")
        if final.exists():  # the same update saved again, with more known about it: a validation's outcome
            shutil.rmtree(final)
        partial.rename(final)
        _sync(self.checkpoints)

    def resumable(self) -> list[int]:
        """The updates of the checkpoints that hold all it takes to go on, newest first."""
        states = self.checkpoints.glob("[0-9]*/state.json")
        return sorted((int(path.parent.name) for path in states), reverse=True)

    def load_checkpoint(self, update: int) -> tuple[Weights, Weights, dict[str, Any]]:
        """Weights, training tensors and state of a checkpoint."""
        folder = self._checkpoint(update)
        try:
            state = json.loads((folder / "state.json").read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{folder / 'state.json'}: damaged checkpoint: {error}") from error
        return load_tensors(folder / "weights.safetensors"), load_tensors(folder / "training.safetensors"), state

    def average(self, updates: Sequence[int]) -> Weights:
        """The mean of the weights of several checkpoints."""
        mean: Weights = {}
        for update in updates:
            for name, tensor in load_tensors(self._checkpoint(update) / "weights.safetensors").items():
                mean[name] = mean.get(name, 0) + tensor / len(updates)
        return mean

    def prune(self, *, resumable: int, weights: Sequence[int]) -> None:
        """Keep the newest `resumable` checkpoints whole, the weights of the updates named, and nothing else."""
        whole = self.resumable()[:resumable]
        for folder in self.checkpoints.glob("[0-9]*"):
            update = int(folder.name)
            if update in whole:
                continue
            if update in weights:
                (folder / "state.json").unlink(missing_ok=True)  # first: without it nobody resumes from here
                (folder / "training.safetensors").unlink(missing_ok=True)
            else:
                shutil.rmtree(folder)

    def _checkpoint(self, update: int) -> Path:
        return self.checkpoints / f"{update:08d}"


def newest_run(runs: Path) -> Path:
    """The run folder whose weights were written last."""
    models = sorted(runs.glob("*/model.safetensors"), key=lambda path: path.stat().st_mtime)
    if not models:
        raise UserError(f"{runs}: no trained run here yet; `make train` makes one, or name one with run=FOLDER")
    return models[-1].parent


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file aside, sync it, then rename it into place."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial)
    except SafetensorError as error:  # how it reports a full disk or a missing permission
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {error}") from error
    _sync(partial)
    partial.rename(path)


def load_tensors(path: Path) -> Weights:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or missing weights: {error}") from error


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file aside, sync it, then rename it into place."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        _sync(partial)
        partial.rename(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def weights_of(model: nn.Module) -> Weights:
    """A model's weights by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def load_into(model: nn.Module, weights: Weights, where: Path) -> None:
    """Copy weights into a model; UserError, naming `where` they came from, if the model has other ones."""
    parameters = dict(model.named_parameters())
    if {name: p.shape for name, p in parameters.items()} != {name: w.shape for name, w in weights.items()}:
        raise UserError(f"{where}: these weights are of another model than the run's config.yaml describes")
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
