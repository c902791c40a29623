"""Load a model to start from, and the options it comes with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from translator.config.building import by_dotted_name
from translator.config.languages import BACK_TRANSLATED, SEPARATOR
from translator.config.options import RunConfig
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, require_fit
from translator.pretrained.huggingface import Pretrained, load
from translator.runs.finding import place_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import require_writable, sole_user
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.typed import typed
from translator.text.tokenizer import UNK_ID


def load_pretrained(source: str, config: RunConfig, option: str = "init") -> Pretrained:
    """Load the model of a run folder, or of a folder or hub id of Marian or M2M-100 weights.

    Dropout and subword sampling come from `config`, and so do language tags except for a run folder.
    Raises UserError if there is no such model. option: what names it.
    """
    folder = RunFolder(source)
    if folder.config_file.is_file():
        _warn_of_missing_pieces(folder.load_config(), config, f"{option}={source}")
        if folder.has_int8_weights():
            log(f"start      {source} has int8 weights. Training starts from them as float32.")
        pretrained = dataclasses.replace(without_weights(folder, config, option), weights=folder.load_weights())
    else:
        try:
            pretrained = load(source, config)
        except UserError as error:
            raise UserError(f"{option}={source}: {error}") from error
    with torch.device("meta"), SkipInit():  # there a model of any size takes no memory
        model = Transformer(pretrained.model, *map(len, pretrained.tokenizers))
    require_fit(model, pretrained.weights, Path(source))
    return pretrained


def _warn_of_missing_pieces(saved: RunConfig, config: RunConfig, run: str) -> None:
    """Warn if a new target language will be spelled in letters, because the run's target vocabulary lacks its pieces."""
    new = set(config.data.target.split("+")) - set(saved.data.target.split("+"))
    if saved.tokenizer.joint and saved.tokenizer.narrow_target and new:
        log(f"warning: {run}: its targets have the pieces of {saved.data.target} alone, so {' and '.join(sorted(new))} "
            "will take many small ones; a run with tokenizer.narrow_target=false has the sources' pieces too")


def without_weights(folder: RunFolder, config: RunConfig, option: str = "init") -> Pretrained:
    """Return the model and the vocabulary of a run, to resume from a checkpoint."""
    saved = folder.load_config()
    languages, wanted = (saved.data.source, saved.data.target), (config.data.source, config.data.target)
    if (saved.tokenizer.source_tag or saved.tokenizer.target_tag) and languages != wanted:
        raise UserError(
            f"{option}={folder.path}: has the language tags of {' to '.join(languages)}, not of {' to '.join(wanted)}. "
            "Import the original model again for these languages.")
    dropout = {name: getattr(config.model, name) for name in ("dropout", "attention_dropout", "activation_dropout")}
    return Pretrained(
        str(folder.path), dataclasses.replace(saved.model, **dropout),
        dataclasses.replace(saved.tokenizer, sampling=config.tokenizer.sampling), folder.load_tokenizers(), {})


def adopt(config: RunConfig, pretrained: Pretrained, named: Sequence[str]) -> RunConfig:
    """Return the options with the model and the vocabulary of `pretrained`.

    `named`: the options that the user gave, such as `model.d_ff`, or `model` for the whole group.
    Raises UserError if one of them contradicts the model.
    """
    adopted = dataclasses.replace(config, model=pretrained.model, tokenizer=pretrained.tokenizer)
    before, now = by_dotted_name(config), by_dotted_name(adopted)
    for option in now:
        if before[option] != now[option] and {option, option.split(".")[0]} & set(named):
            raise UserError(
                f"{option}={before[option]}: the model in {pretrained.source} has {now[option]}. Leave the option out.")
    known = pretrained.tokenizers[0].tags
    if set(config.data.tags) - set(known) or bool(known) != bool(config.data.tags):
        remedy = f"chooses among {', '.join(known)}: name several of these languages, joined by +" if known else (
            "translates to one language: name one")
        raise UserError(f"data.target={config.data.target}: the model in {pretrained.source} {remedy}")
    for option, piece in (("monolingual", BACK_TRANSLATED), ("context", SEPARATOR)):
        if getattr(config.data, option) and pretrained.tokenizers[0].ids_of([piece]) == [UNK_ID]:
            raise UserError(f"data.{option}: the vocabulary of {pretrained.source} has no piece {piece}. Leave out init.")
    return adopted


def import_run(config: RunConfig, *, named: Sequence[str] = ()) -> None:
    """Make a run folder of the model that `init` names. named: options that the user gave."""
    init = config.init
    if not init:
        raise UserError(f"init: names no model. Write `{typed('import', init=...)}` with a folder, or an id on the hub.")
    if not Path(init).exists() and init.startswith((".", "/", "~")):
        raise UserError(f"init={init}: no such folder. Name the folder of a model, or the id of one on the hub.")
    if not {"data.source", "data.target"} <= set(named):
        languages = {"data.source": config.data.source, "data.target": config.data.target}
        raise UserError("data.source and data.target: say which languages the model is for, as in "
                        f"`{typed('import', init=init, **languages)}`.")
    if "name" not in named:
        config = dataclasses.replace(config, name=Path(init).name)
    folder = RunFolder(place_of(config.runs) / config.name)
    if folder.has_begun():
        raise UserError(f"{folder.path}: a run exists here. Choose another name=")
    require_writable(folder.path)
    pretrained = load_pretrained(init, config)
    config = adopt(config, pretrained, named)
    with sole_user(folder.path):
        folder.create(config, pretrained.tokenizers, {})
        folder.begin_with(pretrained.weights)
    run = folder.path
    log(f"{folder.path}: {sum(weight.numel() for weight in pretrained.weights.values()):,} parameters\n\n"
        f"Next:\n  {typed('translate', text=..., run=run)}\n  {typed('train', init=run, data=...)}")
