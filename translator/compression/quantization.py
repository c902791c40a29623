"""Copy a run with its weights in int8.

Each row of a matrix is rounded to whole numbers from -127 to 127, times a float32 scale: the rows of a linear layer's
weights, one an output, and token embeddings. Biases, norms, and tables of positions stay in float32.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from translator.config.commands import QuantizeConfig
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, is_int8, quantise, require_fit
from translator.runs.finding import chosen_runs
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runtime.atomic_files import Weights, require_writable, writing
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.typed import typed


def quantize_run(config: QuantizeConfig) -> None:
    """Write a run's int8 copy to a folder of its own."""
    [run] = chosen_runs(config.run, config.runs)
    beside = Path(f"{run.resolve()}-int8")
    here = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    output = Path(config.output) if config.output else here
    require_not_of_a_run(output)
    if output.exists() or output.is_symlink():
        raise UserError(f"{output}: exists. Remove it, or choose another output=.")
    require_writable(output)
    before, after = write_quantized(RunFolder(run), output)
    log(f"{output}: {after / 1e6:,.1f} MB of weights, {after / before:.0%} of {before / 1e6:,.1f} MB\n\n"
        f"Next:\n  {typed('evaluate', run=output)}\n  {typed('translate', text=..., run=output)}")


def write_quantized(folder: RunFolder, output: Path) -> tuple[int, int]:
    """Copy a run without its checkpoints, curves and evaluations, in int8; return the bytes of both files of weights.

    The folder appears when it is complete.
    """
    config, weights = folder.load_config(), quantised_weights(folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    with writing(output), TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as aside:
        partial = Path(aside) / output.name
        partial.mkdir()
        copy = folder.copy_to(partial, dataclasses.replace(config, name=output.name), weights)
        sizes = folder.model_file.stat().st_size, copy.model_file.stat().st_size
        partial.rename(output)
    return sizes


def quantised_weights(folder: RunFolder) -> Weights:
    """Return the weights of a run in int8; UserError for a run that has them already."""
    weights = folder.load_weights(stored=True)
    if is_int8(weights):
        raise UserError(f"{folder.path}: has int8 weights already. Name another run, as RUN=runs/x.")
    with torch.device("meta"), SkipInit():
        model = Transformer(folder.load_config().model, *map(len, folder.load_tokenizers()))
    require_fit(model, weights, folder.model_file)
    return quantise(weights, model)
