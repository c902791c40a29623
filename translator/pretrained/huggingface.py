"""Weights and vocabularies as `transformers` loads them, made into ours."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from translator.config.building import build
from translator.config.options import ModelConfig, RunConfig
from translator.pretrained.m2m100 import m2m100
from translator.pretrained.marian import marian
from translator.pretrained.parts import Family, Pretrained
from translator.pretrained.vocabulary import Vocabulary, arrange, renumber, segmentation
from translator.runtime.atomic_files import Weights
from translator.runtime.errors import UserError
from translator.text.tokenizer import BOS_ID, Tokenizer

FAMILIES = {"marian": marian, "m2m_100": m2m100}
# What `transformers` calls the parts of a layer, and what they are called here.
PARTS = {
    "self_attn.q_proj": "self_attention.W_q", "self_attn.k_proj": "self_attention.W_k",
    "self_attn.v_proj": "self_attention.W_v", "self_attn.out_proj": "self_attention.W_o",
    "encoder_attn.q_proj": "cross_attention.W_q", "encoder_attn.k_proj": "cross_attention.W_k",
    "encoder_attn.v_proj": "cross_attention.W_v", "encoder_attn.out_proj": "cross_attention.W_o",
    "encoder_attn_layer_norm": "around_cross.norm", "fc1": "feed_forward.inner", "fc2": "feed_forward.outer",
    "final_layer_norm": "around_feed_forward.norm"}
SELF_NORM = {"encoder": "around_attention.norm", "decoder": "around_self.norm"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# Options that config.json may hold, with the one value that there is a counterpart for.
REQUIRED = {
    "scale_embedding": True, "static_position_embeddings": True, "normalize_before": False, "normalize_embedding": False,
    "add_final_layer_norm": False}
# A model from elsewhere may bring Python code: unless told this, transformers asks on stdin whether to run it.
NEVER_RUN: dict[str, Any] = {"trust_remote_code": False}
# Added to the logit of what is never produced: beside any other, its probability is then lost in rounding.
SILENCE = -30.0


def load(source: str, config: RunConfig) -> Pretrained:
    """The model that a folder or hub id names; UserError where there is none, or none that has a counterpart here."""
    try:
        model, tokenizer = _read(source)
        family = FAMILIES[model.config.model_type](model, tokenizer, config)
        return _converted(source, model, family, config)
    except UserError as error:
        raise UserError(f"init={source}: {error}") from error


def _read(source: str) -> tuple[Any, Any]:
    """The model and the tokenizer, as `transformers` loads them."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            "no run folder, and other models are loaded by transformers, which is missing: make .venv/ready-huggingface, "
            "or pip install '.[huggingface]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings(), _telling_what_failed():
        warnings.simplefilter("ignore")  # Marian's tokenizer asks for sacremoses, and makes no use of it
        config = transformers.AutoConfig.from_pretrained(source, **NEVER_RUN)
        _require_counterpart(config)
        model, told = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True, **NEVER_RUN)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **NEVER_RUN)
    if lacking := sorted([*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])]):
        raise UserError(f"damaged: weights are missing, or not of the shape in its config.json: {', '.join(lacking[:3])}")
    if not isinstance(tokenizer, transformers.MarianTokenizer | transformers.M2M100Tokenizer):
        raise UserError(f"its tokenizer is a {type(tokenizer).__name__}; those of Marian and M2M-100 can be read")
    return model.eval(), tokenizer


@contextmanager
def _telling_what_failed() -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of whatever kind transformers, and what it builds on, may raise
        if "trust_remote_code" in str(error):
            there = " or ".join(FAMILIES)
            raise UserError(f"it has Python code of its own, which is never run. Name a model of type {there}.") from error
        raise UserError(f"neither a run folder nor a model that transformers can load: {str(error)[:300]}") from error


def _require_counterpart(found: Any) -> None:
    """UserError where the options of a config.json make a model that there is none of here."""
    if found.model_type not in FAMILIES:
        raise UserError(f"a model of type {found.model_type}; those of type {' and '.join(FAMILIES)} can be taken over")
    for option, value in REQUIRED.items():
        if getattr(found, option, value) != value:
            raise UserError(f"{option}={getattr(found, option)} in its config.json; only {value} has a counterpart here")
    for option in ("ffn_dim", "attention_heads"):
        encoder, decoder = getattr(found, f"encoder_{option}"), getattr(found, f"decoder_{option}")
        if encoder != decoder:
            raise UserError(f"encoder_{option}={encoder}, decoder_{option}={decoder}: only equal ones have a counterpart here")
    if found.activation_function not in ACTIVATIONS:
        raise UserError(f"activation_function={found.activation_function}; there are {', '.join(ACTIVATIONS)} here")


def _converted(source: str, model: Any, family: Family, config: RunConfig) -> Pretrained:
    tables = tuple(part.weight.detach() for part in (
        model.get_encoder().embed_tokens, model.get_decoder().embed_tokens, model.get_output_embeddings()))
    of_encoder, of_decoder, of_output = (table.data_ptr() for table in tables)
    tied = "none" if of_output != of_decoder else "target" if of_encoder != of_decoder else "all"
    vocabularies = _vocabularies(model, family, joint=tied == "all")
    source_tokenizer, target_tokenizer = (
        Tokenizer(renumber(side.pieces, vocabulary, family.tags), side.tag)
        for side, vocabulary in zip((family.source, family.target), vocabularies, strict=True))
    options = dataclasses.replace(
        config.tokenizer, **segmentation(family.source.pieces), vocab_size=max(map(len, vocabularies)),
        joint=tied == "all", narrow_target=False, source_tag=family.source.tag, target_tag=family.target.tag)
    rows = [list(vocabulary.values()) for vocabulary in vocabularies]
    weights = _layers(model.state_dict()) | _tables(tables, rows[0], rows[1], tied)
    if family.positions is None:
        weights = _in_our_channels(weights)
    else:
        weights |= {f"{side}_embedding.positions.table.weight": family.positions.clone() for side in ("source", "target")}
    weights["output.bias"] = _bias(family, rows[1])
    return Pretrained(
        source, _shape(model.config, family, tied, config.model), options, (source_tokenizer, target_tokenizer), weights)


def _shape(theirs: Any, family: Family, tied: str, chosen: ModelConfig) -> ModelConfig:
    """The model's, with the dropout that was chosen."""
    return build(ModelConfig, dataclasses.asdict(chosen) | {
        "d_model": theirs.d_model, "num_heads": theirs.encoder_attention_heads, "d_ff": theirs.encoder_ffn_dim,
        "encoder_layers": theirs.encoder_layers, "decoder_layers": theirs.decoder_layers, "norm": family.norm,
        "activation": ACTIVATIONS[theirs.activation_function], "max_positions": theirs.max_position_embeddings,
        "positions": "sinusoidal" if family.positions is None else "learned", "encoder_window": None,
        "decoder_window": None, "tied": tied, "output_bias": True})


def _tables(tables: tuple[Tensor, Tensor, Tensor], source: Sequence[int], target: Sequence[int], tied: str) -> Weights:
    """The embeddings and the output projection by our ids, tied ones once."""
    weights = {"source_embedding.tokens.weight": tables[0][list(source)]}
    if tied != "all":
        weights["target_embedding.tokens.weight"] = tables[1][list(target)]
    if tied == "none":
        weights["output.weight"] = tables[2][list(target)]
    return weights


def _vocabularies(model: Any, family: Family, *, joint: bool) -> tuple[Vocabulary, Vocabulary]:
    """The source's and the target's."""
    pad, start, eos = (getattr(model.config, f"{name}_id") for name in ("pad_token", "decoder_start_token", "eos_token"))
    sides, sizes = (family.source, family.target), (model.get_encoder().embed_tokens, model.get_decoder().embed_tokens)
    models = [side.pieces for side in sides]
    source, target = (
        arrange(side.rows, table.num_embeddings, (pad, side.unknown, start, eos), models if joint else [side.pieces])
        for side, table in zip(sides, sizes, strict=True))
    return source, target


def _bias(family: Family, rows: Sequence[int]) -> Tensor:
    """The output's bias by our ids. Of ids with one row, all but one are silent, BOS if it is among them."""
    heard = set(family.silent)
    bias = family.bias[list(rows)]
    for i in [*range(BOS_ID), *range(BOS_ID + 1, len(rows)), BOS_ID]:
        if rows[i] in heard:
            bias[i] += SILENCE
        heard.add(rows[i])
    return bias


def _layers(state: Weights) -> Weights:
    """The weights of all layers, and of what may stand behind the last, by our names."""
    renamed = {}
    for name, tensor in state.items():
        if of_layer := re.fullmatch(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            side, number, part, what = of_layer.groups()
            ours = SELF_NORM[side] if part == "self_attn_layer_norm" else PARTS[part]
            renamed[f"{side}.{number}.{ours}.{what}"] = tensor
        elif last := re.fullmatch(r"model\.(encoder|decoder)\.layer_norm\.(weight|bias)", name):
            renamed[f"{last[1]}_norm.{last[2]}"] = tensor
    return renamed


def _in_our_channels(weights: Weights) -> Weights:
    """The same model with the channels of what runs through its layers in another order.

    Its positions are sines in the first half of the channels and cosines in the second; ours take turns.
    """
    width = len(weights["encoder.0.around_attention.norm.weight"])
    order = torch.arange(width).view(2, -1).T.flatten()
    ordered = {}
    for name, tensor in weights.items():
        if re.search(r"(W_o|outer|norm)\.(weight|bias)$", name):  # these write channels
            ordered[name] = tensor[order]
        else:  # these read them; of their biases there is one an output
            ordered[name] = tensor[:, order] if tensor.dim() == 2 else tensor
    return ordered
