"""A model to start from: one of our runs, or weights of another toolkit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from translator.config.building import by_dotted_name
from translator.config.options import RunConfig
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, require_fit
from translator.pretrained.parts import Pretrained
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.runtime.errors import UserError

__all__ = ["Pretrained", "adopt", "load_pretrained", "without_weights"]


def load_pretrained(source: str, config: RunConfig) -> Pretrained:
    """The model of a run folder, or of a folder or hub id of Marian or M2M-100 weights; UserError where there is none.

    Dropout and subword sampling are those of `config`, and so are the language tags, but for a run folder.
    """
    if RunFolder(source).config_file.is_file():
        _warn_of_lacking_pieces(source, config)
        weights = RunFolder(source).load_weights()
        pretrained = dataclasses.replace(without_weights(RunFolder(source), config), weights=weights)
    else:
        from translator.pretrained.huggingface import load  # what it needs is for this alone

        pretrained = load(source, config)
    with torch.device("meta"), SkipInit():  # where a model takes no memory, whatever its sizes
        model = Transformer(pretrained.model, *map(len, pretrained.tokenizers))
    require_fit(model, pretrained.weights, Path(source))
    return pretrained


def _warn_of_lacking_pieces(run: str, config: RunConfig) -> None:
    """Say so where targets will be spelled in letters, for want of their language's pieces."""
    saved = RunFolder(run).load_config()
    new = set(config.data.target.split("+")) - set(saved.data.target.split("+"))
    if saved.tokenizer.joint and saved.tokenizer.narrow_target and new:
        log(f"warning: init={run}: its targets have the pieces of {saved.data.target} alone, so {' and '.join(sorted(new))} "
            "will take many small ones; a run with tokenizer.narrow_target=false has those of its sources too")


def without_weights(folder: RunFolder, config: RunConfig) -> Pretrained:
    """The model and the vocabulary of a run, for a training that goes on from a checkpoint."""
    saved = folder.load_config()
    languages, own = (saved.data.source, saved.data.target), (config.data.source, config.data.target)
    if (saved.tokenizer.source_tag or saved.tokenizer.target_tag) and languages != own:
        raise UserError(
            f"init={folder.path}: has the language tags of {' to '.join(languages)}, not of {' to '.join(own)}: import it "
            "again from where it came")
    dropout = {name: getattr(config.model, name) for name in ("dropout", "attention_dropout", "activation_dropout")}
    return Pretrained(
        str(folder.path), dataclasses.replace(saved.model, **dropout),
        dataclasses.replace(saved.tokenizer, sampling=config.tokenizer.sampling),
        folder.load_tokenizers(), {})


def adopt(config: RunConfig, pretrained: Pretrained, named: Sequence[str]) -> RunConfig:
    """The options with the model and the vocabulary of `pretrained`; UserError where one of those `named` says otherwise.

    `named`: the options that the user gave, such as `model.d_ff`, or `model` for the whole group.
    """
    adopted = dataclasses.replace(config, model=pretrained.model, tokenizer=pretrained.tokenizer)
    before, now = by_dotted_name(config), by_dotted_name(adopted)
    for option in now:
        if before[option] != now[option] and {option, option.split(".")[0]} & set(named):
            raise UserError(
                f"{option}={before[option]}: the model in {pretrained.source} has {now[option]}; leave the option out")
    known = pretrained.tokenizers[0].tags
    if set(config.data.tags) - set(known) or bool(known) != bool(config.data.tags):
        raise UserError(
            f"data.target={config.data.target}: the model in {pretrained.source} "
            + (f"chooses among {', '.join(known)}: name several of these languages, joined by +" if known
               else "translates to one language: name one"))
    return adopted
