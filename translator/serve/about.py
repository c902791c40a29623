"""What the page says about a served model: its run, its size, its score, its report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from translator.inference.translator import Translator
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit
from translator.runtime.atomic_files import read_plain


@dataclass(frozen=True)
class About:
    """Facts about a served run."""

    run: str
    parameters: int
    bleu: float | None  # on the test split; None where it was not evaluated
    report: Path | None  # the page that `make report` wrote into the run's folder

    @classmethod
    def of(cls, translator: Translator) -> About:
        """Collect the facts from the run's folder."""
        folder = translator.folder
        assert folder is not None
        sizes = len(translator.source_tokenizer), len(translator.target_tokenizer)
        with torch.device("meta"), SkipInit():  # the model in memory may hold int8
            model = Transformer(folder.load_config().model, *sizes)
        report = folder.path / "report" / "report.html"
        return cls(folder.path.resolve().name, sum(weight.numel() for weight in model.parameters()),
                   _bleu(folder.path / "evaluation-test" / "scores.json"), report if report.is_file() else None)


def _bleu(file: Path) -> float | None:
    try:
        return round(float(json.loads(read_plain(file))["scores"]["bleu"]["value"]), 1)
    except (OSError, ValueError, LookupError, TypeError):
        return None
