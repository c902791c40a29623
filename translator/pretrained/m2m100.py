"""M2M-100's models: Fan et al. 2020, https://arxiv.org/abs/2010.11125."""

from __future__ import annotations

from typing import Any

import torch

from translator.config.options import RunConfig
from translator.pretrained.parts import Family, Side, choose_tag


def m2m100(model: Any, tokenizer: Any, config: RunConfig) -> Family:
    """Of an M2M100ForConditionalGeneration and an M2M100Tokenizer. Each side begins with the tag of its language."""
    size = model.config.vocab_size
    tags = {tag: row for tag, row in tokenizer.lang_token_to_id.items() if row < size}
    pieces = tokenizer.sp_model.serialized_model_proto()
    sides = {
        side: Side(
            pieces, tokenizer.encoder | tags, tokenizer.encoder[tokenizer.unk_token],
            choose_tag(f"{side}_tag", wanted, f"__{language}__", frozenset(tags)))
        for side, wanted, language in (
            ("source", config.tokenizer.source_tag, config.data.source),
            ("target", config.tokenizer.target_tag, config.data.target))}
    positions = model.get_encoder().embed_positions
    first = positions.padding_idx + 1  # the position of a first token
    return Family(
        norm="pre", source=sides["source"], target=sides["target"], tags=frozenset(tags), bias=torch.zeros(size), silent=(),
        positions=positions.weights[first : first + model.config.max_position_embeddings])
