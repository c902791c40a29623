"""Make a run folder of a trained model: `python scripts/import.py init=x/opus-mt-en-de name=opus`. Options: conf/train.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import dataclasses
import shlex
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from translator.config.building import from_hydra, named_options
from translator.config.options import RunConfig
from translator.pretrained import adopt, load_pretrained
from translator.runs.run_folder import RunFolder, place_of
from translator.runtime.atomic_files import require_writable
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.file_lock import sole_user


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
@one_line_errors()
def main(composed: DictConfig) -> None:
    if not composed.init:
        raise UserError("init names no model to import; give FROM=FOLDER, or the id of one on the hub")
    named = named_options(HydraConfig.get().overrides.task)
    if not {"data.source", "data.target"} <= set(named):
        raise UserError('data.source and data.target: say which languages it is for: ARGS="data.source=en data.target=de"')
    config = from_hydra(RunConfig, composed)
    if "name" not in named:
        config = dataclasses.replace(config, name=Path(composed.init).name)
    assert config.init is not None
    folder = RunFolder(place_of(config.runs) / config.name)
    if folder.has_begun():
        raise UserError(f"{folder.path}: there is a run already; choose another name=")
    require_writable(folder.path)
    pretrained = load_pretrained(config.init, config)
    config = adopt(config, pretrained, named)
    with sole_user(folder.path):
        folder.create(config, pretrained.tokenizers, {})
        folder.begin_with(pretrained.weights)
    run = shlex.quote(str(folder.path))
    log(f"{folder.path}: {sum(weight.numel() for weight in pretrained.weights.values()):,} parameters\n\n"
        f"Next:\n  make translate TEXT=\"...\" RUN={run}\n  make train ARGS=\"init={run} data=...\"")


if __name__ == "__main__":
    with one_line_errors():
        main()
