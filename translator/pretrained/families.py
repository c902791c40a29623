"""The kinds of models that can be converted."""

from __future__ import annotations

from typing import Any

import torch

from translator.config.options import RunConfig
from translator.pretrained.parts import Family, Side
from translator.runtime.errors import UserError


def marian(model: Any, tokenizer: Any, config: RunConfig) -> Family:
    """Describe a MarianMTModel. If it has several target languages, a tag on the source names one.

    Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344; the OPUS-MT models: Tiedemann and Thottingal 2020,
    https://aclanthology.org/2020.eamt-1.61.
    """
    tags = frozenset(piece for piece in tokenizer.encoder if piece.startswith(">>") and piece.endswith("<<"))
    wanted = config.tokenizer.source_tag
    tag = _choose_tag("source_tag", wanted, f">>{config.data.target}<<", tags) if tags or wanted else None
    target_rows = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    unknown = tokenizer.unk_token
    return Family(
        norm="post",
        source=Side(tokenizer.spm_source.serialized_model_proto(), tokenizer.encoder, tokenizer.encoder[unknown], tag),
        target=Side(tokenizer.spm_target.serialized_model_proto(), target_rows, target_rows[unknown], None),
        tags=tags, bias=model.final_logits_bias[0], silent=(model.config.pad_token_id,), positions=None)


def m2m100(model: Any, tokenizer: Any, config: RunConfig) -> Family:
    """Describe an M2M100ForConditionalGeneration. Each side begins with the tag of its language.

    Fan et al. 2020, https://arxiv.org/abs/2010.11125.
    """
    size = model.config.vocab_size
    tags = {tag: row for tag, row in tokenizer.lang_token_to_id.items() if row < size}

    def side(option: str, wanted: str | None, language: str) -> Side:
        return Side(
            tokenizer.sp_model.serialized_model_proto(), tokenizer.encoder | tags, tokenizer.encoder[tokenizer.unk_token],
            _choose_tag(option, wanted, f"__{language}__", frozenset(tags)))

    table = model.get_encoder().embed_positions
    first = table.padding_idx + 1  # the position of a first token
    return Family(
        norm="pre", source=side("source_tag", config.tokenizer.source_tag, config.data.source),
        target=side("target_tag", config.tokenizer.target_tag, config.data.target), tags=frozenset(tags),
        bias=torch.zeros(size), silent=(), positions=table.weights[first : first + model.config.max_position_embeddings])


def _choose_tag(option: str, wanted: str | None, usual: str, tags: frozenset[str]) -> str:
    tag = wanted or usual
    if tag not in tags:
        raise UserError(f"tokenizer.{option}={tag}: the model has no such tag. Choose one of {', '.join(sorted(tags))}.")
    return tag


FAMILIES = {"marian": marian, "m2m_100": m2m100}  # by `model_type` in config.json
