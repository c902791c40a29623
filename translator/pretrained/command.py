"""The command `make import`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from translator.config.options import RunConfig
from translator.pretrained import adopt, load_pretrained
from translator.runs.run_folder import RunFolder, place_of
from translator.runtime.atomic_files import require_writable
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.file_lock import sole_user


def import_run(config: RunConfig, given: Sequence[str]) -> None:
    """Make a run folder of the model that `init` names. `given`: the names of the options that were given."""
    init = config.init
    if not init:
        raise UserError("init names no model to import; give FROM=FOLDER, or the id of one on the hub")
    if not {"data.source", "data.target"} <= set(given):
        raise UserError('data.source and data.target: say which languages it is for: ARGS="data.source=en data.target=de"')
    if "name" not in given:
        config = dataclasses.replace(config, name=Path(init).name)
    folder = RunFolder(place_of(config.runs) / config.name)
    if folder.has_begun():
        raise UserError(f"{folder.path}: there is a run already; choose another name=")
    require_writable(folder.path)
    pretrained = load_pretrained(init, config)
    config = adopt(config, pretrained, given)
    with sole_user(folder.path):
        folder.create(config, pretrained.tokenizers, {})
        folder.begin_with(pretrained.weights)
    run = shlex.quote(str(folder.path))
    log(f"{folder.path}: {sum(weight.numel() for weight in pretrained.weights.values()):,} parameters\n\n"
        f"Next:\n  make translate TEXT=\"...\" RUN={run}\n  make train ARGS=\"init={run} data=...\"")
