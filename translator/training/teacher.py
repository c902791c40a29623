"""Word-level distillation: trained models whose distributions a student learns.

Hinton et al. 2015, https://arxiv.org/abs/1503.02531; Kim and Rush 2016, https://arxiv.org/abs/1606.07947, section 3.1.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from translator.config.options import RunConfig
from translator.model.transformer import Transformer
from translator.model.weights import SkipInit, load_into
from translator.pretrained import Pretrained, load_pretrained
from translator.runtime.atomic_files import checksum
from translator.runtime.console import log
from translator.runtime.device import advise_when_out_of_memory
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer
from translator.training.loss import Projection


class Teacher:
    """A model, or an ensemble of models with one vocabulary, that is not trained."""

    def __init__(self, models: Sequence[Transformer], digest: str = "") -> None:
        """digest: of all weights."""
        self.models, self.digest = [model.eval().requires_grad_(False) for model in models], digest

    def projections(self, source: Tensor, target: Tensor, real: Tensor | None) -> list[Projection]:
        """Return what each model's distributions of the next tokens are made of, as `Transformer.hidden` takes a batch."""
        # With `no_grad`, attention would choose decoding's paths, which change a setting that threads share.
        return [Projection(model.hidden(source, target, real), model.output.weight, model.output.bias) for model in self.models]


def load_teacher(config: RunConfig, device: torch.device, start: Pretrained | None
                 ) -> tuple[Teacher | None, Pretrained | None]:
    """Load `train.teacher` onto a device; also return its vocabulary, which the student must have, with the student's model.

    start: the model that init names. Raises UserError where the vocabularies of all these models differ.
    """
    loaded = [load_pretrained(source, config, "train.teacher") for source in config.train.teachers]
    if not loaded:
        return None, None
    first = loaded[0]
    for other in (*loaded[1:], *([] if start is None else [start])):
        if not all(map(Tokenizer.same_as, first.tokenizers, other.tokenizers)):
            remedy = "Leave init out" if other is start else "Name runs that share a vocabulary"
            raise UserError(f"train.teacher={first.source}: its vocabulary does not match that of {other.source}. {remedy}.")
    log(f"teacher    {' and '.join(each.source for each in loaded)}, whose vocabulary the student has")
    digest = hashlib.sha256("".join(checksum(each.weights) for each in loaded).encode()).hexdigest()
    with advise_when_out_of_memory("train.teacher does not fit. Choose a smaller one, or device=cpu"):
        models = [_built(each).to(device) for each in loaded]
    return Teacher(models, digest), dataclasses.replace(first, model=config.model, weights={})


def _built(pretrained: Pretrained) -> Transformer:
    with SkipInit():
        model = Transformer(pretrained.model, *map(len, pretrained.tokenizers))
    load_into(model, pretrained.weights, Path(pretrained.source))
    return model
