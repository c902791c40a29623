"""A trained model as translating takes it: from a run folder, or in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from translator.config.options import SearchConfig
from translator.inference.planning import TrainingStatistics
from translator.model.inference_layers import convert, int8_of, strip_hooks
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, is_int8, load_int8_into, load_into, require_fit
from translator.runs.finding import find_run
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision, advise_when_out_of_memory, resolve_device
from translator.text.language import preload
from translator.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """All that a translator needs of a run. In memory, weights and device may change between calls."""

    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    search: SearchConfig  # used where a call names no other
    statistics: TrainingStatistics = TrainingStatistics()  # noqa: RUF009 frozen
    folder: RunFolder | None = None
    languages: tuple[str, ...] = ()  # that it reads; text in another is translated with a warning
    low_certainty: Mapping[int, float] = dataclasses.field(default_factory=dict)  # as `RunFolder.load_low_certainty` returns it
    precision: Precision = Precision.FP32

    @classmethod
    def load(
        cls, run: str | Path, device: str = "auto", precision: str = "fp32", *, dequantised: bool = False
    ) -> TrainedModel:
        """Load a run folder for decoding; UserError if that is not possible.

        A run of `make quantize` is decoded in int8, or if `dequantised` as one with float32 weights.
        """
        where, folder = resolve_device(device), RunFolder(find_run(str(run)))
        config, tokenizers = folder.load_config(), folder.load_tokenizers()
        languages = tuple(dict.fromkeys(source for source, _ in config.data.directions))
        preload(languages)
        statistics, weights = TrainingStatistics.from_report(folder.load_report()), folder.load_weights(stored=not dequantised)
        stored_in_int8 = is_int8(weights)
        chosen = int8_of(run, where, precision) if stored_in_int8 else Precision.resolve(precision, where)
        with torch.device("meta"), SkipInit():  # check the sizes in config.yaml before they take memory
            require_fit(Transformer(config.model, *map(len, tokenizers)), weights, folder.model_file)
        with advise_when_out_of_memory(
                f"{run} does not fit beside what {where.type} holds already; free some, or use device=cpu"):
            with SkipInit():
                model = Transformer(config.model, *map(len, tokenizers))
            (load_int8_into if stored_in_int8 else load_into)(model, weights, folder.model_file)
            model.alignment_heads = folder.load_alignment(config.model) or model.alignment_heads
            model = strip_hooks(convert(model.to(where).for_decoding(), chosen))
        return cls(model, *tokenizers, config.search, statistics, folder, languages, folder.load_low_certainty(), chosen)

    def reloaded(self) -> Transformer:
        """Return the model in float32 on the CPU, from its folder."""
        assert self.folder is not None
        return TrainedModel.load(self.folder.path, "cpu", dequantised=True).model
