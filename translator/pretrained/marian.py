"""Marian's models, of which the OPUS-MT ones are best known.

Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344; Tiedemann and Thottingal 2020,
https://aclanthology.org/2020.eamt-1.61.
"""

from __future__ import annotations

from typing import Any

from translator.config.options import RunConfig
from translator.pretrained.parts import Family, Side, choose_tag


def marian(model: Any, tokenizer: Any, config: RunConfig) -> Family:
    """Of a MarianMTModel and a MarianTokenizer. A model of several target languages is told one by a tag on the source."""
    tags = frozenset(piece for piece in tokenizer.encoder if piece.startswith(">>") and piece.endswith("<<"))
    wanted = config.tokenizer.source_tag
    tag = choose_tag("source_tag", wanted, f">>{config.data.target}<<", tags) if tags or wanted else None
    target_rows = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    unknown = tokenizer.unk_token
    return Family(
        norm="post",
        source=Side(tokenizer.spm_source.serialized_model_proto(), tokenizer.encoder, tokenizer.encoder[unknown], tag),
        target=Side(tokenizer.spm_target.serialized_model_proto(), target_rows, target_rows[unknown], None),
        tags=tags, bias=model.final_logits_bias[0], silent=(model.config.pad_token_id,), positions=None)
