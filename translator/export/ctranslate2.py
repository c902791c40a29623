"""A trained model for CTranslate2, https://opennmt.net/CTranslate2 (floor 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from ctranslate2.specs.common_spec import Activation
from torch import nn

from translator.attention import MultiHeadAttention
from translator.export.decoding import Decoding
from translator.layers import DecoderLayer, EncoderLayer, GatedFeedForward, PreNorm
from translator.model import Embedding, Transformer
from translator.tokenizer import BOS_ID, EOS_ID, UNK_ID
from translator.translate import Translator

ACTIVATIONS = {"relu": Activation.RELU, "gelu": Activation.GELU, "swiglu": Activation.SWISH}


def write(translator: Translator, decoding: Decoding, folder: Path, quantization: Literal["float32", "int8"]) -> None:
    [model] = translator.models
    spec = specification(model, decoding.longest)
    source, target = (t.pieces(range(len(t))) for t in (translator.source_tokenizer, translator.target_tokenizer))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = target[UNK_ID], target[BOS_ID], target[EOS_ID]
    spec.config.decoder_start_token = target[BOS_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(folder))


@torch.no_grad()
def specification(model: Transformer, longest: int) -> TransformerSpec:
    config = model.config
    options: dict[str, Any] = {
        "num_heads": config.num_heads, "pre_norm": config.norm == "pre", "activation": ACTIVATIONS[config.activation],
        "ffn_glu": config.activation == "swiglu", "rotary_dim": 0 if config.positions == "rotary" else None,
        "rotary_interleave": False}
    spec = TransformerSpec(
        TransformerEncoderSpec(config.encoder_layers, **options), TransformerDecoderSpec(config.decoder_layers, **options))
    _set_embedding(spec.encoder.embeddings[0], spec.encoder, model.source_embedding, longest)
    _set_embedding(spec.decoder.embeddings, spec.decoder, model.target_embedding, longest)
    _set_linear(spec.decoder.projection, model.output)
    if config.norm == "pre":
        _set_norm(spec.encoder.layer_norm, model.encoder_norm)
        _set_norm(spec.decoder.layer_norm, model.decoder_norm)
    for part, layer in [*zip(spec.encoder.layer, model.encoder, strict=True), *zip(spec.decoder.layer, model.decoder, strict=True)]:
        _set_layer(part, layer)
    return spec


def _set_embedding(tokens: Any, side: Any, embedding: Embedding, longest: int) -> None:
    tokens.weight = embedding.tokens.weight.numpy()
    if embedding.positions is not None:
        side.position_encodings.encodings = embedding.positions(torch.zeros(1, longest, embedding.tokens.embedding_dim))[0].numpy()


def _set_layer(part: Any, layer: Any) -> None:
    a = layer.self_attention
    _set_linear(part.self_attention.linear[0], a.W_q, a.W_k, a.W_v)
    _set_linear(part.self_attention.linear[1], a.W_o)
    if isinstance(layer, DecoderLayer):
        _set_norm(part.self_attention.layer_norm, layer.around_self.norm)
        a = layer.cross_attention
        _set_linear(part.attention.linear[0], a.W_q)
        _set_linear(part.attention.linear[1], a.W_k, a.W_v)
        _set_linear(part.attention.linear[2], a.W_o)
        _set_norm(part.attention.layer_norm, layer.around_cross.norm)
    else:
        _set_norm(part.self_attention.layer_norm, layer.around_attention.norm)
    f = layer.feed_forward
    if isinstance(f, GatedFeedForward):
        _set_linear(part.ffn.linear_0, f.gate)
        _set_linear(part.ffn.linear_0_noact, f.inner)
    else:
        _set_linear(part.ffn.linear_0, f.inner)
    _set_linear(part.ffn.linear_1, f.outer)
    _set_norm(part.ffn.layer_norm, layer.around_feed_forward.norm)


def _set_linear(part: Any, *linears: nn.Linear) -> None:
    part.weight = torch.cat([linear.weight for linear in linears]).numpy()
    if linears[0].bias is not None:
        part.bias = torch.cat([linear.bias for linear in linears]).numpy()


def _set_norm(part: Any, norm: Any) -> None:
    part.gamma, part.beta = norm.weight.numpy(), norm.bias.numpy()
