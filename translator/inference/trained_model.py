"""A trained model with its tokenizers, from a run folder or from memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from translator.config.options import SearchConfig
from translator.inference.planning import TrainingStatistics
from translator.model.inference_layers import convert, strip_hooks
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, load_into, require_fit
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision, advise_when_out_of_memory, resolve_device
from translator.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainedModel:
    """All that a translator needs of a run. In memory, weights and device may change between calls."""

    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    search: SearchConfig  # used where a call names no other
    statistics: TrainingStatistics = TrainingStatistics()  # noqa: RUF009 frozen
    folder: RunFolder | None = None

    @classmethod
    def load(cls, run: str | Path, device: str = "auto", precision: str = "fp32") -> TrainedModel:
        """Load a run folder for decoding; UserError if that is not possible."""
        where, folder = resolve_device(device), RunFolder(run)
        config, tokenizers = folder.load_config(), folder.load_tokenizers()
        statistics, weights = TrainingStatistics.from_report(folder.load_report()), folder.load_weights()
        with torch.device("meta"), SkipInit():  # check the sizes in config.yaml before they take memory
            require_fit(Transformer(config.model, *map(len, tokenizers)), weights, folder.model_file)
        with advise_when_out_of_memory(
                f"{run} does not fit beside what {where.type} holds already; free some, or use device=cpu"):
            with SkipInit():
                model = Transformer(config.model, *map(len, tokenizers))
            load_into(model, weights, folder.model_file)
            model = strip_hooks(convert(model.to(where).for_decoding(), Precision.resolve(precision, where)))
        return cls(model, *tokenizers, config.search, statistics, folder)
