"""A run folder: what stands where.

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
      checkpoints/           as translator/runs/checkpoint.py has them

Safetensors files hold the SHA-256 of what they say, which is looked at whenever they are read.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from translator.config.building import build, read_yaml, to_yaml
from translator.config.options import RunConfig
from translator.runs.checkpoint import Checkpoint, Checkpoints
from translator.runtime.atomic_files import (
    Weights,
    load_tensors,
    read_plain,
    require_no_link,
    save_tensors,
    write_bytes,
    write_text,
)
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.search.shortlist import Shortlist
from translator.text.tokenizer import Tokenizer

# To be raised when a run folder changes so that older releases would misread it.
FORMAT = 1
# Begins the last line of config.yaml: another number of heads, say, would fit the weights and make other translations of them.
SHAPE = "# sha256 of the model: "
# The names of what a run keeps for itself.
OWN = (
    "config.yaml", "tokenizer*.model", "SHA256SUMS", "data_report.json", "model.safetensors", "outcome.json", "metrics.jsonl",
    "shortlist.safetensors", "tensorboard", "checkpoints", "evaluation-*", ".lock*")


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
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._identity: tuple[int, int] | None = None  # of the folder that `create` laid out

    def create(self, config: RunConfig, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        """Lay the folder out.

        config.yaml comes last: a folder that has one has the rest. Of a run that has begun only the options are new; UserError
        where it was made of other data than these.
        """
        for name in ("checkpoints", "tensorboard", "evaluation-test"):
            require_no_link(self.path / name)
        begun = self.has_begun()
        if begun:
            self.require_same_data(tokenizers, report)
        if not begun or "fingerprint" not in self.load_report():  # what was imported has seen no data so far
            if self.checkpoints.resumable():
                log(f"warning: {self.report_file} does not tell what data this run was begun with; it may not have been these")
            self._write_data(tokenizers, report)
        options = to_yaml(config)
        shape = _digest(yaml.safe_load(options)["model"])
        write_text(self.config_file, f"format: {FORMAT}\n{options}{SHAPE}{shape}\n")
        self._identity = _identity(self.path)

    def has_begun(self) -> bool:
        """Whether there is anything here that was learned: a start that failed, for want of memory say, leaves nothing.

        UserError where config.yaml is another program's, or gone from what was learned.
        """
        files = (self.model_file, self.metrics_file, self.outcome_file)
        learned = bool(self.checkpoints.resumable()) or any(file.is_file() for file in files)
        if self.config_file.is_file():
            self.load_config()
            return learned
        if learned:
            raise UserError(
                f"{self.path}: what was trained here has lost its config.yaml; take that from a copy of the run, or choose "
                "another name= to start anew")
        return False

    def _write_data(self, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        self.checkpoints.path.mkdir(parents=True, exist_ok=True)
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
                "ones back, or start anew with another name=")

    def load_config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise UserError(f"{self.path}: no run folder here (it has no config.yaml); `make train` makes one")
        values = read_yaml(self.config_file)
        version = values.pop("format", FORMAT) if isinstance(values, dict) else FORMAT
        if not isinstance(version, int) or version > FORMAT:
            raise UserError(
                f"{self.path}: a run folder of format {version}, and this release reads up to {FORMAT}: update the translator")
        _renew(values)
        try:
            config = build(RunConfig, values)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from error
        _, written, shape = read_plain(self.config_file).decode().rpartition(SHAPE)
        if written and shape.strip() != _digest(values["model"]):
            raise UserError(
                f"{self.config_file}: the options under model are not those of this run's training. Restore them, or take the "
                "file from a copy of the run.")
        return config

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
        """What data_report.json says; nothing where it cannot be read: without it a run can still go on and be scored."""
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
            raise UserError(
                f"{self.path}: has no model.safetensors; a training writes it at its first validation, or when it goes on")
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
        except (OSError, ValueError, RecursionError):
            return None

    def save_checkpoint(self, update: int, weights: Weights, training: Weights, state: Mapping[str, Any]) -> None:
        """`Checkpoints.save`, in the folder that was laid out and in no other that has taken its name."""
        self._require_in_place()
        try:
            self.checkpoints.save(update, weights, training, state)
        except UserError as error:
            raise UserError(f"{error} The checkpoints before it are kept, and the same command resumes from there.") from error

    def newest_checkpoint(self, read: dict[int, Checkpoint]) -> int | None:
        """`Checkpoints.newest_whole`, for the sole user of the folder; UserError where there were some and none is left."""
        if self._identity is not None:
            self._require_in_place()
        self.clear_partial()
        newest = self.checkpoints.newest_whole(read)
        if newest is None and self.metrics_file.is_file():
            raise UserError(
                f"{self.checkpoints.path}: the checkpoints of this training are gone; put a copy there to go on, or choose "
                "another name= to start anew")
        return newest

    def clear_partial(self) -> None:
        """Remove what a process that was killed while it wrote has left; for the sole user of the folder."""
        self.checkpoints.clear_partial()
        for left in self.path.glob(".*.partial"):
            if left.is_symlink() or not left.is_dir():  # folders are exports, of another process perhaps
                left.unlink()

    def _require_in_place(self) -> None:
        if not self.config_file.is_file() or self._identity not in (None, _identity(self.path)):
            raise UserError(f"{self.path}: the run folder was removed or moved while it was trained in; nothing was saved")

    def _check_sums(self) -> None:
        """UserError where a file is not what SHA256SUMS says; a folder older than these sums has none."""
        for line in read_plain(self.sums_file).splitlines() if self.sums_file.is_file() else ():
            expected, _, name = line.decode(errors="replace").partition("  ")
            file = self.path / Path(name).name  # in this folder, whatever stands there
            if not name:
                raise UserError(f"{self.sums_file}: damaged: take it from a copy of the run")
            if file.is_file() and hashlib.sha256(read_plain(file)).hexdigest() != expected:
                raise UserError(f"{file}: damaged: it is not the file that was written; take it from a copy of the run")


def _renew(values: Any) -> None:
    """Respell the options that earlier releases wrote otherwise."""
    search = values.get("search") if isinstance(values, dict) else None
    if isinstance(search, dict):
        if isinstance(search.get("split_sentences"), bool):
            search["split_sentences"] = "auto" if search["split_sentences"] else "never"
        if search.get("min_length") == 0:
            search["min_length"] = 1


def _digest(options: Mapping[str, Any]) -> str:
    """Return the SHA-256 of options as YAML holds them."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


def _identity(folder: Path) -> tuple[int, int]:
    """What tells a folder from another that has taken its name."""
    about = folder.stat()
    return about.st_dev, about.st_ino


def require_not_of_a_run(output: Path) -> None:
    """Raise UserError where a command would write over a file of a run, through links too."""
    path = output.resolve()
    for folder in path.parents:
        run, name = RunFolder(folder), path.relative_to(folder).parts[0]
        if any(fnmatch.fnmatch(name, own) for own in OWN) and run.config_file.is_file() and (
                run.report_file.is_file() or run.model_file.is_file()):
            raise UserError(f"output={output}: {name} belongs to the run in {folder}. Name another output.")


def place_of(runs: str) -> Path:
    """Return the folder of all runs; UserError where the option is empty."""
    if not runs:
        raise UserError("runs: is empty. Name the folder of the runs, as runs=runs.")
    return Path(runs)


def chosen_runs(named: str | tuple[str, ...] | None, runs: str) -> tuple[Path, ...]:
    """The run folders that are named; where none is, the newest of those in `runs`."""
    if not named:
        return (newest_run(place_of(runs)),)
    return tuple(map(Path, (named,) if isinstance(named, str) else named))


def newest_run(runs: Path) -> Path:
    """The run folder whose weights were written last."""
    with_weights = (path.parent for path in runs.glob("*/model.safetensors"))
    trained = [run for run in with_weights if RunFolder(run).config_file.is_file()]  # exports are no runs
    if not trained:
        raise UserError(f"{runs}: no trained run here yet; `make train` makes one, or name one with run=FOLDER")
    return max(trained, key=lambda run: RunFolder(run).model_file.stat().st_mtime)
