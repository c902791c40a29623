"""The files of a run folder. Safetensors files hold the SHA-256 of their content, which is checked at each read.

    runs/<name>/
      config.yaml            the resolved options, and the format of this folder
      tokenizer.model        or tokenizer.source.model and tokenizer.target.model
      SHA256SUMS             of the tokenizers, as `sha256sum -c` reads them
      data_report.json       which pairs were read, kept and dropped
      model.safetensors      the weights to translate with: the best so far, the chosen ones at the end
      outcome.json           which weights those are, once training has ended
      metrics.jsonl          one line per measurement
      alignment.json         the attention that aligns words, chosen at the end
      lexicon.safetensors    pieces that translate each other, with their probabilities, for word alignment
      calibration.json       how sure the model is on validation: what counts as unsure, and how far its probabilities are off
      shortlist.safetensors  candidate target pieces of each source piece, from `make shortlist`
      ctranslate2-engine-*/  the weights for CTranslate2, made by a search with engine=auto or ctranslate2
      tensorboard/           the measurements as curves, with samples and attention maps
      .tracker.json          the run at a tracking service, and what was sent to it
      wandb/                 what Weights & Biases keeps
      checkpoints/           see translator/runs/checkpoint.py
      best-<metric>/         a run folder with the best checkpoint by a metric of train.keep
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from translator.config.building import build, read_yaml, to_yaml
from translator.config.data import DataConfig
from translator.config.options import ModelConfig, RunConfig
from translator.data.lexicon import Lexicon
from translator.model.alignment_heads import AlignmentHeads
from translator.model.weights import dequantise
from translator.runs.checkpoint import Checkpoints
from translator.runtime.atomic_files import Weights, load_tensors, read_plain, require_no_link, save_tensors, write_bytes
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.typed import typed
from translator.search.shortlist import Shortlist
from translator.text.tokenizer import Tokenizer

# Raise it when a run folder changes so that older releases would misread it.
FORMAT = 1
# What `make quantize` writes, which releases before it cannot read; all else is as in format 1.
INT8_FORMAT = 2
# Begins the last line of config.yaml: an edited number of heads would fit the weights, and translate otherwise.
SHAPE = "# sha256 of the model: "
ENGINE = "ctranslate2-engine-"  # and a digest of the weights
# Names that no command may write to.
OWN = (
    "config.yaml", "tokenizer*.model", "SHA256SUMS", "data_report.json", "model.safetensors", "outcome.json", "metrics.jsonl",
    "alignment.json", "lexicon.safetensors", "calibration.json", "shortlist.safetensors", "tensorboard", "checkpoints",
    ".tracker.json", "wandb", "evaluation-*", f"{ENGINE}*", ".lock*")


# What a run folder inside another shares with it.
SHARED = ("tokenizer*.model", "SHA256SUMS", "data_report.json", "alignment.json", "lexicon.safetensors", "config.yaml")


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
        self.alignment_file = self.path / "alignment.json"
        self.lexicon_file = self.path / "lexicon.safetensors"
        self.calibration_file = self.path / "calibration.json"
        self.shortlist_file = self.path / "shortlist.safetensors"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._inode: int | None = None  # of the folder that `create` wrote

    def create(self, config: RunConfig, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        """Write the folder, config.yaml last; of a run that has begun the options only, and UserError where its data differ."""
        bests = (f"best-{metric}" for metric in config.train.keep)
        for name in ("checkpoints", "tensorboard", "wandb", "evaluation-test", *bests):
            require_no_link(self.path / name)
        if begun := self.has_begun():
            self.require_same_data(tokenizers, report)
        if not begun or "fingerprint" not in self.load_report():  # an imported run has seen no data yet
            if self.checkpoints.resumable():
                log(f"warning: {self.report_file} does not tell which data this run began with: maybe not these.")
            self.checkpoints.path.mkdir(parents=True, exist_ok=True)
            source, target = (tokenizer.model for tokenizer in tokenizers)
            files = {"tokenizer.model": source} if tokenizers[0] is tokenizers[1] else {
                "tokenizer.source.model": source, "tokenizer.target.model": target}
            for name in ("tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"):
                (self.path / name).unlink(missing_ok=True)
            for name, model in files.items():
                write_bytes(self.path / name, model)
            sums = (f"{hashlib.sha256(model).hexdigest()}  {name}\n" for name, model in files.items())
            write_bytes(self.sums_file, "".join(sums).encode())
            write_bytes(self.report_file, (json.dumps(report, ensure_ascii=False, indent=1) + "\n").encode())
        self.write_config(config)
        self._inode = self.path.stat().st_ino

    def write_config(self, config: RunConfig, version: int = FORMAT) -> None:
        options = to_yaml(config)
        shape = _digest(yaml.safe_load(options)["model"])
        write_bytes(self.config_file, f"format: {version}\n{options}{SHAPE}{shape}\n".encode())

    def has_begun(self) -> bool:
        """Return whether anything was learned here; UserError where config.yaml is damaged, or missing beside learned files."""
        files = (self.model_file, self.metrics_file, self.outcome_file)
        learned = bool(self.checkpoints.resumable()) or any(file.is_file() for file in files)
        if self.config_file.is_file():
            self.load_config()
        elif learned:
            raise UserError(
                f"{self.path}: has lost its config.yaml. Restore it from a copy of the run, or choose another name=.")
        return learned

    def require_same_data(self, tokenizers: tuple[Tokenizer, Tokenizer], report: Mapping[str, Any]) -> None:
        """Raise UserError where the run was begun on other data."""
        same = all(map(Tokenizer.same_as, self.load_tokenizers(), tokenizers))
        before = self.load_report().get("fingerprint")
        if not same or (before is not None and before != report.get("fingerprint")):
            raise UserError(f"{self.path}: the data, or the libraries that prepare them, have changed since this run began. "
                            "Restore them, or start a new run with another name=.")

    def load_config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise UserError(f"{self.path}: no run folder here (it has no config.yaml). `{typed('train')}` makes one.")
        values = read_yaml(self.config_file)
        if isinstance(values, dict):
            version = values.pop("format", FORMAT)
            if not isinstance(version, int) or version > INT8_FORMAT:
                raise UserError(f"{self.path}: a run folder of format {version}; this release reads up to {INT8_FORMAT}. "
                                "Update the translator.")
            _renew(values.get("search"))
        try:
            config = build(RunConfig, values)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from error
        _, written, shape = read_plain(self.config_file).decode().rpartition(SHAPE)
        if written and shape.strip() != _digest(values["model"]):
            raise UserError(f"{self.config_file}: the options under model do not match this run's training. Restore them, "
                            "or take the file from a copy of the run.")
        return config

    def load_data(self) -> DataConfig:
        """Return the data options. UserError if data.cache, which a stranger may have chosen, is no cache here."""
        data = self.load_config().data
        place = Path(data.cache).resolve()
        if place.is_dir():
            allowed = not any(place.iterdir()) or any(place.glob("*__t*-*"))  # what a cache holds from its first use on
        else:
            allowed = not place.exists() and place.is_relative_to(Path.cwd())
        if not allowed:
            raise UserError(f"{self.config_file}: data.cache={data.cache}: is no data cache on this machine. If the run is "
                            "yours, create an empty folder there, or name another in that file.")
        return data

    def load_tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Return both tokenizers, one object where the sides share all pieces; UserError if a file differs from SHA256SUMS."""
        for line in read_plain(self.sums_file).splitlines() if self.sums_file.is_file() else ():
            expected, _, name = line.decode(errors="replace").partition("  ")
            file = self.path / Path(name).name  # never outside this folder
            if not name or (file.is_file() and hashlib.sha256(read_plain(file)).hexdigest() != expected):
                raise UserError(f"{file if name else self.sums_file}: damaged. Restore it from a copy of the run.")
        joint = self.path / "tokenizer.model"
        if joint.is_file():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        options = self.load_config().tokenizer
        return (Tokenizer.load(self.path / "tokenizer.source.model", options.source_tag),
                Tokenizer.load(self.path / "tokenizer.target.model", options.target_tag))

    def mean_target(self) -> float | None:
        """Return the mean tokens of the training targets; None where the report lacks them."""
        try:
            train = self.load_report()["splits"]["train"]
            return float(train["target_tokens"] / train["kept"])
        except (KeyError, TypeError, ZeroDivisionError):
            return None

    def digest_of(self, split: str) -> str | None:
        """Return the digest of validation or test when it was trained; None where the report lacks it."""
        digests = self.load_report().get("digests")
        return digests.get(split) if isinstance(digests, dict) else None

    def load_report(self) -> dict[str, Any]:
        """Return data_report.json; empty where it cannot be read: a run can be resumed and scored without it."""
        report = _read_json(self.report_file)
        return report if isinstance(report, dict) else {}

    def begin_with(self, weights: Weights) -> None:
        """Keep the weights that a training starts from, unless it has begun."""
        if not self.has_begun():
            save_tensors(self.model_file, weights)

    def load_weights(self, *, stored: bool = False) -> Weights:
        """Return the weights in float32; if `stored` as the file has them, after `make quantize` in int8 with scales."""
        if not self.model_file.is_file():
            raise UserError(
                f"{self.path}: has no model.safetensors. A training writes it at its first validation, or when it is resumed.")
        weights = load_tensors(self.model_file)
        return weights if stored else dequantise(weights)

    def has_int8_weights(self) -> bool:
        """Return whether `make quantize` wrote the weights."""
        values = read_yaml(self.config_file) if self.config_file.is_file() else None
        return isinstance(values, dict) and values.get("format") == INT8_FORMAT

    def best(self, metric: str) -> RunFolder:
        """Return the run folder of the best checkpoint by a metric."""
        return RunFolder(self.path / f"best-{metric}")

    def save_best(self, metric: str, weights: Weights, outcome: Mapping[str, Any]) -> None:
        """Make weights the best by a metric."""
        best = self.best(metric)
        best.path.mkdir(exist_ok=True)
        self.share_with(best)
        best.outcome_file.unlink(missing_ok=True)  # of the weights before
        save_tensors(best.model_file, weights)
        best.save_outcome(outcome)

    def share_with(self, other: RunFolder) -> None:
        """Copy to a folder of the same training what does not depend on its weights, or hardly, such as the aligning heads."""
        for file in (file for pattern in SHARED for file in self.path.glob(pattern)):
            write_bytes(other.path / file.name, read_plain(file, 1 << 31))

    def copy_to(self, path: Path, config: RunConfig, weights: Weights | None = None) -> RunFolder:
        """Copy a run without its checkpoints, curves and evaluations to an empty folder, with these options; return that.

        `weights`: in int8, in place of its own.
        """
        for file in self.path.iterdir():
            if file.is_file() and not file.name.startswith(".") and any(fnmatch.fnmatch(file.name, own) for own in OWN):
                shutil.copyfile(file, path / file.name)
        copy = RunFolder(path)
        if weights is not None:
            save_tensors(copy.model_file, weights)
        copy.write_config(config, INT8_FORMAT if weights is not None or self.has_int8_weights() else FORMAT)
        return copy

    def save_shortlist(self, shortlist: Shortlist) -> None:
        save_tensors(self.shortlist_file, {name: tensor.int() for name, tensor in vars(shortlist).items()})

    def load_shortlist(self, source_pieces: int, target_pieces: int) -> Shortlist:
        if not self.shortlist_file.is_file():
            raise UserError(f"{self.path}: has no shortlist. `{typed('shortlist', run=self.path)}` learns one.")
        tensors = load_tensors(self.shortlist_file)
        with suppress(TypeError):  # other names
            shortlist = Shortlist(**{name: tensor.long() for name, tensor in tensors.items()})
            if shortlist.fits(source_pieces, target_pieces):
                return shortlist
        raise UserError(f"{self.shortlist_file}: does not match this run. "
                            f"`{typed('shortlist', run=self.path)}` learns a new one.")

    def save_alignment(self, heads: AlignmentHeads, **found: float) -> None:
        content = {"format": FORMAT, **asdict(heads), **found}
        write_bytes(self.alignment_file, (json.dumps(content, indent=1) + "\n").encode())

    def load_alignment(self, model: ModelConfig) -> AlignmentHeads | None:
        """Return the heads that align words; None where none were chosen. UserError for a damaged file."""
        if not self.alignment_file.is_file():
            return None
        content = _read_json(self.alignment_file)
        with suppress(KeyError, TypeError, ValueError):
            heads = AlignmentHeads(tuple(content["layers"]), content["head"], content["next_row"])
            if content["format"] <= FORMAT and heads.fits(model.heads("cross")):
                return heads
        raise UserError(f"{self.alignment_file}: does not match this run. Remove it, and words are aligned by all layers.")

    def save_lexicon(self, lexicon: Lexicon) -> None:
        save_tensors(self.lexicon_file, lexicon.tensors())

    def load_lexicon(self, source_pieces: int, target_pieces: int) -> Lexicon | None:
        """Return the lexicon for word alignment; None where the run has none. UserError for one of other vocabularies."""
        if not self.lexicon_file.is_file():
            return None
        lexicon = Lexicon.of_tensors(load_tensors(self.lexicon_file), target_pieces)
        if lexicon is None or not lexicon.fits(source_pieces):
            raise UserError(f"{self.lexicon_file}: does not match this run. Remove it, and words are aligned without it.")
        return lexicon

    def save_outcome(self, outcome: Mapping[str, Any]) -> None:
        write_bytes(self.outcome_file, (json.dumps(outcome, indent=1) + "\n").encode())

    def load_outcome(self) -> Any:
        """Return outcome.json; None while training has not ended, or where it is damaged: it can be written again."""
        return _read_json(self.outcome_file)

    def load_test_sets(self) -> list[dict[str, Any]]:
        """Return scores.json of each test set that this run was scored on by name."""
        files = (_read_json(file) for file in sorted(self.path.glob("evaluation-*/scores.json")))
        return [scores for scores in files if isinstance(scores, dict) and "test_set" in scores]

    def save_calibration(self, calibration: Mapping[str, Any]) -> None:
        write_bytes(self.calibration_file, (json.dumps(calibration, indent=1) + "\n").encode())

    def load_low_certainty(self) -> dict[int, float]:
        """Return which mean log-probability of a translation is low, by beam size; empty where the run does not know."""
        try:
            low = _read_json(self.calibration_file)["low_log_probability"]
            return {int(beam): float(value) for beam, value in low.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}

    def save_checkpoint(self, update: int, weights: Weights, training: Weights, state: Mapping[str, Any]) -> None:
        """Save a checkpoint, unless another folder has taken this one's name."""
        if not self.config_file.is_file() or self._inode not in (None, self.path.stat().st_ino):
            raise UserError(f"{self.path}: the run folder was removed or moved during training. Nothing was saved.")
        try:
            self.checkpoints.save(update, weights, training, state)
        except UserError as error:
            raise UserError(f"{error} The checkpoints before it are kept, and the same command resumes from there.") from error

    def newest_checkpoint(self) -> int | None:
        """Return the update of the newest undamaged checkpoint; UserError where all of a begun training are lost."""
        self.clear_partial()
        newest = self.checkpoints.newest_undamaged()
        if newest is None and (self.metrics_file.is_file() or self.checkpoints.resumable()):
            raise UserError(f"{self.checkpoints.path}: no readable checkpoint of this training. Restore one from a backup, or "
                            "start a new run with another name=.")
        return newest

    def clear_partial(self) -> None:
        """Remove what a killed process left half-written; for the only user of the folder."""
        for left in self.checkpoints.path.glob(".*.partial"):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        for left in (*self.path.glob(".*.partial"), *self.path.glob("best-*/.*.partial")):
            if left.is_symlink() or not left.is_dir():  # another process may be writing an export to a folder
                left.unlink()


def _read_json(file: Path) -> Any:
    """Return what a JSON file holds; None where it cannot be read."""
    try:
        return json.loads(read_plain(file))
    except (OSError, ValueError, RecursionError):
        return None


def _renew(search: Any) -> None:
    """Rename what earlier releases wrote otherwise."""
    if isinstance(search, dict):
        if isinstance(search.get("split_sentences"), bool):
            search["split_sentences"] = "auto" if search["split_sentences"] else "never"
        if search.get("min_length") == 0:
            search["min_length"] = 1


def _digest(options: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


def require_not_of_a_run(output: Path) -> None:
    """Raise UserError where a command would overwrite a file of a run, also through links."""
    path = output.resolve()
    for folder in path.parents:
        run, name = RunFolder(folder), path.relative_to(folder).parts[0]
        if any(fnmatch.fnmatch(name, own) for own in OWN) and run.config_file.is_file() and (
                run.report_file.is_file() or run.model_file.is_file()):
            raise UserError(f"output={output}: {name} belongs to the run in {folder}. Name another output.")
