"""A run folder: what stands where, its checkpoints, averaged weights (floor 4).

    runs/<name>/
      config.yaml            the resolved options, and the format of this folder
      tokenizer.model        or tokenizer.source.model and tokenizer.target.model
      SHA256SUMS             of the tokenizers, as `sha256sum -c` reads them
      data_report.json       what was read, kept and dropped
      model.safetensors      the weights to translate with: the best so far, the chosen ones at the end
      outcome.json           which weights those are, once training has ended
      metrics.jsonl          one line a measurement
      shortlist.safetensors  once `make shortlist` has learned one: the target pieces that may render each source piece
      tensorboard/           the same as curves, with samples and attention maps
      checkpoints/<update>/  weights.safetensors; for the newest also training.safetensors and state.json, to go on from

Safetensors files and state.json hold the SHA-256 of what they say, which is looked at whenever they are read.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from translator.building import build, read_yaml, to_yaml
from translator.config import RunConfig
from translator.console import say
from translator.distributed import held_like
from translator.errors import UserError
from translator.files import (
    Weights,
    load_tensors,
    read_plain,
    save_tensors,
    sealed,
    sync,
    unsealed,
    write_bytes,
    write_text,
)
from translator.shortlist import Shortlist
from translator.tokenizer import Tokenizer

# Weights, training tensors and state.
Checkpoint = tuple[Weights, Weights, dict[str, Any]]

# To be raised when a run folder changes so that older releases would misread it.
FORMAT = 1


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.sums_file = self.path / "SHA256SUMS"
        self.config_file = self.path / "config.yaml"
        self.model_file = self.path / "model.safetensors"
        self.metrics_file = self.path / "metrics.jsonl"
        self.report_file = self.path / "data_report.json"
        self.outcome_file = self.path / "outcome.json"
        self.shortlist_file = self.path / "shortlist.safetensors"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self._identity: tuple[int, int] | None = None  # of the folder that `create` laid out

    def create(self, config: RunConfig, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        """Lay the folder out.

        config.yaml comes last: a folder that has one has the rest. Of a run that has begun only the options are new; UserError
        where it was made of other data than these.
        """
        if self.has_begun():
            self.require_same_data(tokenizers, report)
        else:
            self._write_data(tokenizers, report)
        write_text(self.config_file, f"format: {FORMAT}\n{to_yaml(config)}")
        self._identity = _identity(self.path)

    def has_begun(self) -> bool:
        """Whether there is anything here that was learned: a start that failed, for want of memory say, leaves nothing.

        UserError where config.yaml is another program's.
        """
        if not self.config_file.is_file():
            return False
        self.load_config()
        learned = (self.model_file, self.metrics_file, self.outcome_file)
        return bool(self.resumable()) or any(file.is_file() for file in learned)

    def _write_data(self, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        source, target = tokenizers
        files = {"tokenizer.model": source} if source is target else {
            "tokenizer.source.model": source, "tokenizer.target.model": target}
        for name in ("tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"):
            (self.path / name).unlink(missing_ok=True)
        for name, tokenizer in files.items():
            write_bytes(self.path / name, tokenizer.model)
        write_text(self.sums_file, "".join(
            f"{hashlib.sha256(tokenizer.model).hexdigest()}  {name}\n" for name, tokenizer in files.items()))
        write_text(self.report_file, json.dumps(report, ensure_ascii=False, indent=1) + "\n")

    def require_same_data(self, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        """UserError where the run was begun on other data than these."""
        same = all(map(Tokenizer.same_as, self.load_tokenizers(), tokenizers))
        before = self.load_report().get("fingerprint")
        if not same or (before is not None and before != report.get("fingerprint")):
            raise UserError(
                f"{self.path}: the data, or the libraries that prepare them, have changed since this run began; bring the old "
                "ones back to go on, or choose another name=")

    def load_config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise UserError(f"{self.path}: no run folder here (it has no config.yaml); `make train` makes one")
        values = read_yaml(self.config_file)
        version = values.pop("format", FORMAT) if isinstance(values, dict) else FORMAT
        if not isinstance(version, int) or version > FORMAT:
            raise UserError(
                f"{self.path}: a run folder of format {version}, and this release reads up to {FORMAT}: update the translator")
        try:
            return build(RunConfig, values)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from error

    def load_tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """The source's and the target's tokenizer: one and the same where it is one vocabulary, and all of it."""
        self._check_sums()
        joint = self.path / "tokenizer.model"
        if joint.is_file():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        options = self.load_config().tokenizer
        return (Tokenizer.load(self.path / "tokenizer.source.model", options.source_tag),
                Tokenizer.load(self.path / "tokenizer.target.model", options.target_tag))

    def longest_source(self) -> int | None:
        """Tokens of the longest source sentence that it was trained on; None where its report does not say."""
        try:
            return int(self.load_report()["splits"]["train"]["source_longest"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def mean_target(self) -> float | None:
        """Mean tokens of the target sentences that it was trained on; None where its report does not say."""
        try:
            train = self.load_report()["splits"]["train"]
            return float(train["target_tokens"] / train["kept"])
        except (KeyError, TypeError, ZeroDivisionError):
            return None

    def digest_of(self, split: str) -> str | None:
        """`data.digest` of validation or test when it was trained; None where its report does not say."""
        try:
            return self.load_report()["digests"][split]
        except (KeyError, TypeError):
            return None

    def load_report(self) -> dict[str, Any]:
        """What data_report.json says; nothing where it cannot be read: nobody's work depends on it."""
        try:
            report = json.loads(read_plain(self.report_file))
        except (OSError, ValueError, RecursionError):
            return {}
        return report if isinstance(report, dict) else {}

    def begin_with(self, weights: Weights) -> None:
        """Keep the weights that a training starts from, unless it has begun: then it has all that it takes to go on."""
        if not self.has_begun():
            save_tensors(self.model_file, weights)

    def load_weights(self) -> Weights:
        """The weights to translate with."""
        if not self.model_file.is_file():
            raise UserError(f"{self.path}: no weights yet; they are written at the first validation of a training")
        return load_tensors(self.model_file)

    def save_shortlist(self, shortlist: Shortlist) -> None:
        save_tensors(self.shortlist_file, {name: tensor.int() for name, tensor in vars(shortlist).items()})

    def load_shortlist(self, source_pieces: int, target_pieces: int) -> Shortlist:
        """What `save_shortlist` was given, for vocabularies of these sizes."""
        if not self.shortlist_file.is_file():
            raise UserError(f"{self.path}: has no shortlist yet; `make shortlist RUN={self.path}` learns one")
        tensors = load_tensors(self.shortlist_file)
        try:
            shortlist = Shortlist(**{name: tensor.long() for name, tensor in tensors.items()})
            fits = shortlist.fits(source_pieces, target_pieces)
        except TypeError:
            fits = False
        if not fits:
            raise UserError(f"{self.shortlist_file}: is not of this run; `make shortlist RUN={self.path}` learns one")
        return shortlist

    def save_outcome(self, outcome: Mapping[str, Any]) -> None:
        write_text(self.outcome_file, json.dumps(outcome, indent=1) + "\n")

    def load_outcome(self) -> Any:
        """What `save_outcome` was given; None while training has not ended, or where it is damaged: it can be made again."""
        try:
            return json.loads(read_plain(self.outcome_file))
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def save_checkpoint(self, update: int, weights: Weights, training: Weights, state: Mapping[str, Any]) -> None:
        """Write a checkpoint aside, sync it, then rename it into place: a reader never sees half of one.

        Of an update that is saved already only the state is new: what has been validated and recorded since.
        """
        if not self.config_file.is_file() or self._identity not in (None, _identity(self.path)):
            raise UserError(f"{self.path}: the run folder was removed or moved while it was trained in; nothing was saved")
        final = self._checkpoint(update)
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
            sync(self.checkpoints)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def set_aside(self, update: int) -> Path:
        """Rename a damaged checkpoint, so that its update can be saved anew; its new place."""
        damaged = self.checkpoints / f"damaged-{update:08d}"
        shutil.rmtree(damaged, ignore_errors=True)
        return self._checkpoint(update).rename(damaged)

    def clear_partial(self) -> None:
        """Remove what a process that was killed while it wrote has left; for the sole user of the folder."""
        for left in self.checkpoints.glob(".*.partial"):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        for left in self.path.glob(".*.partial"):
            if left.is_symlink() or not left.is_dir():  # folders are exports, of another process perhaps
                left.unlink()

    def resumable(self) -> list[int]:
        """The updates of the checkpoints that hold all it takes to go on, newest first."""
        return sorted((u for u in self._updates() if (self._checkpoint(u) / "state.json").is_file()), reverse=True)

    def newest_whole(self, read: dict[int, Checkpoint]) -> int | None:
        """The update of the newest checkpoint that is whole, which is left in `read`; None where nothing was ever saved.

        Damaged ones are set aside, which is said; UserError where no other is left.
        """
        self.clear_partial()
        damaged: list[int] = []
        for update in (updates := self.resumable()):
            try:
                read[update] = self.load_checkpoint(update)
            except UserError as damage:
                say(f"warning: {damage}; trying the checkpoint before it")
                damaged.append(update)
                continue
            for other in damaged:
                say(f"warning: set aside as {self.set_aside(other)}")
            return update
        if updates or self.metrics_file.is_file():
            lost = "no checkpoint can be read" if updates else "the checkpoints of this training are gone"
            raise UserError(
                f"{self.checkpoints}: {lost}; put a copy there to go on, or choose another name= to start anew")
        return None

    def load_checkpoint(self, update: int) -> Checkpoint:
        """Weights, training tensors and state of a checkpoint."""
        folder = self._checkpoint(update)
        state = self.load_state(update)
        return load_tensors(folder / "weights.safetensors"), load_tensors(folder / "training.safetensors"), state

    def load_state(self, update: int) -> dict[str, Any]:
        """The state alone of a checkpoint."""
        return unsealed(self._checkpoint(update) / "state.json")

    def readable(self, updates: Sequence[int]) -> list[int]:
        """Those whose weights can be read; of the others it is said."""
        found = []
        for update in updates:
            try:
                load_tensors(self._checkpoint(update) / "weights.safetensors")
                found.append(update)
            except UserError as damage:
                say(f"warning: {damage}; going on without it")
        return found

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
        for update in self._updates():
            folder = self._checkpoint(update)
            if update in whole:
                continue
            if update in weights:
                (folder / "state.json").unlink(missing_ok=True)  # first: without it nobody resumes from here
                (folder / "training.safetensors").unlink(missing_ok=True)
            else:
                shutil.rmtree(folder)

    def _check_sums(self) -> None:
        """UserError where a file is not what SHA256SUMS says; a folder older than these sums has none."""
        for line in self.sums_file.read_bytes().splitlines() if self.sums_file.is_file() else ():
            expected, _, name = line.decode(errors="replace").partition("  ")
            file = self.path / Path(name).name  # in this folder, whatever stands there
            if not name:
                raise UserError(f"{self.sums_file}: damaged: take it from a copy of the run")
            if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != expected:
                raise UserError(f"{file}: damaged: it is not the file that was written; take it from a copy of the run")

    def _updates(self) -> list[int]:
        """Of which there are checkpoints, whole or not. A folder of another name, such as a copy, is none of ours."""
        names = [path.name for path in self.checkpoints.glob("[0-9]*")]
        return [int(name) for name in names if re.fullmatch("[0-9]{8,18}", name) and name == f"{int(name):08d}"]

    def _checkpoint(self, update: int) -> Path:
        return self.checkpoints / f"{update:08d}"


def _identity(folder: Path) -> tuple[int, int]:
    """What tells a folder from another that has taken its name."""
    about = folder.stat()
    return about.st_dev, about.st_ino


def chosen_runs(named: str | tuple[str, ...] | None, runs: str) -> tuple[Path, ...]:
    """The run folders that are named; where none is, the newest of those in `runs`."""
    if not named:
        return (newest_run(Path(runs)),)
    return tuple(map(Path, (named,) if isinstance(named, str) else named))


def newest_run(runs: Path) -> Path:
    """The run folder whose weights were written last."""
    with_weights = (path.parent for path in runs.glob("*/model.safetensors"))
    trained = [run for run in with_weights if RunFolder(run).config_file.is_file()]  # exports are no runs
    if not trained:
        raise UserError(f"{runs}: no trained run here yet; `make train` makes one, or name one with run=FOLDER")
    return max(trained, key=lambda run: RunFolder(run).model_file.stat().st_mtime)


def weights_of(model: nn.Module) -> Weights:
    """A model's weights by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def require_fit(model: nn.Module, weights: Weights, where: Path) -> None:
    """UserError, naming `where` the weights came from, if the model has other ones."""
    if {name: p.shape for name, p in model.named_parameters()} != {name: w.shape for name, w in weights.items()}:
        raise UserError(f"{where}: these weights are of another model than the run's config.yaml describes")


@torch.no_grad()
def load_into(model: nn.Module, weights: Weights, where: Path) -> None:
    """Copy weights into a model that has such."""
    require_fit(model, weights, where)
    for name, parameter in model.named_parameters():
        parameter.copy_(held_like(weights[name], parameter))
