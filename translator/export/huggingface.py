"""A trained model for Hugging Face's transformers, as the stock architecture that computes the same (floor 6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    PegasusConfig,
    PegasusForConditionalGeneration,
    Speech2TextTokenizer,
)

from translator.export.decoding import Decoding
from translator.layers import DecoderLayer
from translator.model import Embedding, Transformer
from translator.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from translator.translate import Translator

ARCHITECTURES = {
    ("pre", "sinusoidal"): (PegasusConfig, PegasusForConditionalGeneration),
    ("post", "sinusoidal"): (MarianConfig, MarianMTModel),
    ("pre", "learned"): (BlenderbotConfig, BlenderbotForConditionalGeneration),
}


def write(translator: Translator, decoding: Decoding, folder: Path) -> None:
    [model] = translator.models
    stock = stock_model(model, len(translator.source_tokenizer), len(translator.target_tokenizer), decoding.longest)
    stock.generation_config = generation(decoding)
    stock.save_pretrained(folder)
    write_tokenizer(translator.source_tokenizer, translator.target_tokenizer, decoding.longest, folder)


def generation(decoding: Decoding) -> GenerationConfig:
    return GenerationConfig(
        num_beams=decoding.beam, length_penalty=decoding.lp, early_stopping=decoding.es, max_new_tokens=decoding.mx,
        pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID, decoder_start_token_id=BOS_ID,
        forced_eos_token_id=EOS_ID, suppress_tokens=[PAD_ID, UNK_ID, BOS_ID])


@torch.no_grad()
def stock_model(model: Transformer, source_vocab: int, target_vocab: int, longest: int) -> Any:
    config = model.config
    config_class, model_class = ARCHITECTURES[config.norm, config.positions]
    options: dict[str, Any] = {}
    if model_class is MarianMTModel:
        options = {"share_encoder_decoder_embeddings": config.tied == "all", "decoder_vocab_size": target_vocab}
        tie = config.tied != "none"
    else:
        source_vocab = target_vocab = max(source_vocab, target_vocab)
        tie = config.tied == "all"
    stock = model_class(config_class(
        vocab_size=source_vocab, d_model=config.d_model, max_position_embeddings=longest,
        encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, activation_function=config.activation,
        scale_embedding=True, tie_word_embeddings=tie, dropout=config.dropout, attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout, pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID, forced_eos_token_id=EOS_ID, **options))
    weights = dict(_weights(model, source_vocab, target_vocab, longest))
    stock.load_state_dict({name: weights[name] for name in stock.state_dict()})
    return stock.eval()


def _weights(model: Transformer, source_vocab: int, target_vocab: int, longest: int) -> Iterator[tuple[str, Tensor]]:
    width = model.config.d_model
    order = torch.arange(width)
    if model.config.positions == "sinusoidal":
        order = torch.cat([order[0::2], order[1::2]])

    def norm(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", module.weight[order]
        yield f"{name}.bias", module.bias[order]

    def into(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", module.weight[:, order]
        yield f"{name}.bias", module.bias

    def outof(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", module.weight[order]
        yield f"{name}.bias", module.bias[order]

    def attention(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
        yield from into(f"{name}.q_proj", module.W_q)
        yield from into(f"{name}.k_proj", module.W_k)
        yield from into(f"{name}.v_proj", module.W_v)
        yield from outof(f"{name}.out_proj", module.W_o)

    def table(weight: Tensor, rows: int) -> Tensor:
        return F.pad(weight[:, order], (0, 0, 0, rows - len(weight)))

    yield "model.shared.weight", table(model.source_embedding.tokens.weight, source_vocab)
    yield "lm_head.weight", table(model.output.weight, target_vocab)
    bias = torch.zeros(1, target_vocab)
    bias[:, len(model.output.weight):] = -torch.inf
    yield "final_logits_bias", bias
    for side, embedding, layers, vocab in (
            ("model.encoder", model.source_embedding, model.encoder, source_vocab),
            ("model.decoder", model.target_embedding, model.decoder, target_vocab)):
        yield f"{side}.embed_tokens.weight", table(embedding.tokens.weight, vocab)
        assert embedding.positions is not None
        yield f"{side}.embed_positions.weight", embedding.positions(torch.zeros(1, longest, width))[0][:, order]
        for number, layer in enumerate(layers):
            name = f"{side}.layers.{number}"
            yield from attention(f"{name}.self_attn", layer.self_attention)
            if isinstance(layer, DecoderLayer):
                yield from norm(f"{name}.self_attn_layer_norm", layer.around_self.norm)
                yield from attention(f"{name}.encoder_attn", layer.cross_attention)
                yield from norm(f"{name}.encoder_attn_layer_norm", layer.around_cross.norm)
            else:
                yield from norm(f"{name}.self_attn_layer_norm", layer.around_attention.norm)
            yield from into(f"{name}.fc1", layer.feed_forward.inner)
            yield from outof(f"{name}.fc2", layer.feed_forward.outer)
            yield from norm(f"{name}.final_layer_norm", layer.around_feed_forward.norm)
    if model.config.norm == "pre":
        yield from norm("model.encoder.layer_norm", model.encoder_norm)
        yield from norm("model.decoder.layer_norm", model.decoder_norm)


def write_tokenizer(source: Tokenizer, target: Tokenizer, longest: int, folder: Path) -> None:
    def vocabulary(name: str, tokenizer: Tokenizer) -> str:
        path = folder / name
        path.write_text(json.dumps({piece: i for i, piece in enumerate(tokenizer.pieces(range(len(tokenizer))))}, ensure_ascii=False), encoding="utf-8")
        return str(path)

    def model(name: str, tokenizer: Tokenizer) -> str:
        path = folder / name
        tokenizer.save(path)
        return str(path)

    options: dict[str, Any] = {"split_special_tokens": True, "model_max_length": longest}
    if source is target:
        made = Speech2TextTokenizer(vocabulary("vocab.json", source), model("sentencepiece.bpe.model", source), **options)
    else:
        made = MarianTokenizer(
            model("source.spm", source), model("target.spm", target), vocabulary("vocab.json", source), vocabulary("target_vocab.json", target),
            separate_vocabs=True, bos_token="<s>", **options)
    made.save_pretrained(folder)
