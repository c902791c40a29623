"""Load models by `transformers`, and convert them."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from translator.config.building import build
from translator.config.options import ModelConfig, RunConfig, TokenizerConfig
from translator.runtime.atomic_files import Weights
from translator.runtime.errors import UserError
from translator.runtime.typed import installation
from translator.text.tokenizer import BOS_ID, ModelProto, Piece, Tokenizer

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# Options that config.json may hold, with the only value that can be converted.
REQUIRED = {
    "scale_embedding": True, "static_position_embeddings": True, "normalize_before": False, "normalize_embedding": False,
    "add_final_layer_norm": False}
# A model may bring Python code: without this option, transformers asks on stdin whether to run it.
NEVER_RUN: dict[str, Any] = {"trust_remote_code": False}
SILENCE = -30.0  # added to the logit of pieces that are never output: their probability is then lost in rounding
# A layer's modules: their name in `transformers`, and here.
PARTS = {
    "self_attn.q_proj": "self_attention.W_q", "self_attn.k_proj": "self_attention.W_k",
    "self_attn.v_proj": "self_attention.W_v", "self_attn.out_proj": "self_attention.W_o",
    "encoder_attn.q_proj": "cross_attention.W_q", "encoder_attn.k_proj": "cross_attention.W_k",
    "encoder_attn.v_proj": "cross_attention.W_v", "encoder_attn.out_proj": "cross_attention.W_o",
    "encoder_attn_layer_norm": "around_cross.norm", "fc1": "feed_forward.inner", "fc2": "feed_forward.outer",
    "final_layer_norm": "around_feed_forward.norm"}
SELF_NORM = {"encoder": "around_attention.norm", "decoder": "around_self.norm"}
SEGMENTING = (Piece.NORMAL, Piece.USER_DEFINED, Piece.BYTE)  # pieces that segment text
# Special pieces in the order of their ids here. The one that starts an output is not called <s>: that may be another piece.
SPECIAL = {"<pad>": Piece.CONTROL, "<unk>": Piece.UNKNOWN, "<start>": Piece.CONTROL, "</s>": Piece.CONTROL}
Vocabulary = dict[str, int]  # pieces in the order of ids, each with its row in the other model's embeddings


@dataclass(frozen=True)
class Pretrained:
    """A converted model: its options, its vocabulary and its weights."""

    source: str  # the folder or the hub id it came from
    model: ModelConfig
    tokenizer: TokenizerConfig
    tokenizers: tuple[Tokenizer, Tokenizer]  # the source's and the target's
    weights: Weights


@dataclass(frozen=True)
class Side:
    """How the source, or the target, of an imported model becomes rows of its embeddings."""

    pieces: bytes  # a SentencePiece model, whose own ids are not used
    rows: Mapping[str, int]  # the row of each piece that has one
    unknown: int
    tag: str | None  # the piece that every text begins with


@dataclass(frozen=True)
class Family:
    """What Marian's models and M2M-100's do differently."""

    norm: Literal["pre", "post"]
    source: Side
    target: Side
    tags: frozenset[str]  # pieces that name languages and are no text
    bias: Tensor  # of the output projection
    silent: tuple[int, ...]  # rows that are never output, and take no probability
    positions: Tensor | None  # the table of positions (T, D); None: sines in the first half of the channels, then cosines


def load(source: str, config: RunConfig) -> Pretrained:
    """Load the model of a folder or hub id. Raises UserError if it is missing or cannot be converted."""
    model, tokenizer = _read(source)
    family = FAMILIES[model.config.model_type](model, tokenizer, config)
    return _converted(source, model, family, config)


def _read(source: str) -> tuple[Any, Any]:
    """Return the model and the tokenizer of `transformers`."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            "not a run folder, and transformers, which loads other models, is not installed. Install it with "
            f"`{installation('huggingface')}`.") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Marian's tokenizer asks for sacremoses, and does not use it
            _require_convertible(transformers.AutoConfig.from_pretrained(source, **NEVER_RUN))
            model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                source, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True, **NEVER_RUN)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **NEVER_RUN)
    except UserError:
        raise
    except Exception as error:  # of any kind that transformers, and what it builds on, may raise
        if "trust_remote_code" in str(error):
            kinds = " or ".join(FAMILIES)
            raise UserError(f"it has Python code of its own, which is never run. Name a model of type {kinds}.") from error
        raise UserError(f"neither a run folder nor a model that transformers can load: {str(error)[:300]}") from error
    if lacking := sorted([*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]):
        raise UserError(f"damaged: weights missing, or not of the shape in its config.json: {', '.join(lacking[:3])}")
    if not isinstance(tokenizer, transformers.MarianTokenizer | transformers.M2M100Tokenizer):
        raise UserError(f"its tokenizer is a {type(tokenizer).__name__}. Marian and M2M-100 can be converted.")
    return model.eval(), tokenizer


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


def _require_convertible(theirs: Any) -> None:
    """Raise UserError for an option of a config.json that this project's models lack."""
    if theirs.model_type not in FAMILIES:
        raise UserError(f"model_type={theirs.model_type}: only {' and '.join(FAMILIES)} can be converted")
    for option, value in REQUIRED.items():
        if getattr(theirs, option, value) != value:
            raise UserError(f"{option}={getattr(theirs, option)} in its config.json: only {value} can be converted")
    for option in ("ffn_dim", "attention_heads"):
        encoder, decoder = getattr(theirs, f"encoder_{option}"), getattr(theirs, f"decoder_{option}")
        if encoder != decoder:
            raise UserError(f"encoder_{option}={encoder}, decoder_{option}={decoder}: only equal ones can be converted")
    if theirs.activation_function not in ACTIVATIONS:
        raise UserError(
            f"activation_function={theirs.activation_function}: only {', '.join(ACTIVATIONS)} can be converted")


def _converted(source: str, model: Any, family: Family, config: RunConfig) -> Pretrained:
    tables = tuple(part.weight.detach() for part in (
        model.get_encoder().embed_tokens, model.get_decoder().embed_tokens, model.get_output_embeddings()))
    encoder, decoder, output = (table.data_ptr() for table in tables)
    tied = "none" if output != decoder else "target" if encoder != decoder else "all"
    pad, start, eos = (getattr(model.config, f"{name}_id") for name in ("pad_token", "decoder_start_token", "eos_token"))
    sides = (family.source, family.target)
    pieces = [side.pieces for side in sides]
    vocabularies = [
        arrange(side.rows, len(table), (pad, side.unknown, start, eos), pieces if tied == "all" else [side.pieces])
        for side, table in zip(sides, tables, strict=False)]
    source_tokenizer, target_tokenizer = (
        Tokenizer(renumber(side.pieces, vocabulary, family.tags), side.tag)
        for side, vocabulary in zip(sides, vocabularies, strict=True))
    options = dataclasses.replace(
        config.tokenizer, **segmentation(family.source.pieces), vocab_size=max(map(len, vocabularies)),
        joint=tied == "all", narrow_target=False, source_tag=family.source.tag, target_tag=family.target.tag)
    shape = _shape(model.config, family, tied, config.model)
    source_rows, target_rows = (list(vocabulary.values()) for vocabulary in vocabularies)
    state, names = model.state_dict(), weight_names(shape.encoder_layers, shape.decoder_layers)
    weights = {ours: state[theirs] for theirs, ours in names.items() if theirs in state}
    weights["source_embedding.tokens.weight"] = tables[0][source_rows]
    if tied != "all":
        weights["target_embedding.tokens.weight"] = tables[1][target_rows]
    if tied == "none":
        weights["output.weight"] = tables[2][target_rows]
    if family.positions is None:  # theirs: sines in the first half of the channels; here sines and cosines alternate
        weights = with_channels_in_order(weights, torch.arange(shape.d_model).view(2, -1).T.flatten())
    else:
        weights |= {f"{side}_embedding.positions.table.weight": family.positions.clone() for side in ("source", "target")}
    weights["output.bias"] = _bias(family, target_rows)
    return Pretrained(source, shape, options, (source_tokenizer, target_tokenizer), weights)


def _shape(theirs: Any, family: Family, tied: str, chosen: ModelConfig) -> ModelConfig:
    """Return the model's options, with the dropout of `chosen`."""
    return build(ModelConfig, dataclasses.asdict(chosen) | {
        "d_model": theirs.d_model, "num_heads": theirs.encoder_attention_heads, "d_ff": theirs.encoder_ffn_dim,
        "encoder_layers": theirs.encoder_layers, "decoder_layers": theirs.decoder_layers, "norm": family.norm,
        "head_width": None, "encoder_heads": None, "decoder_heads": None, "cross_heads": None,
        "activation": ACTIVATIONS[theirs.activation_function], "max_positions": theirs.max_position_embeddings,
        "positions": "sinusoidal" if family.positions is None else "learned", "encoder_window": None,
        "decoder_window": None, "tied": tied, "output_bias": True})


def _bias(family: Family, rows: Sequence[int]) -> Tensor:
    """Return the output's bias by id. Of ids with the same row only one is not silent: BOS if it is among them."""
    used = set(family.silent)
    bias = family.bias[list(rows)]
    for i in [*range(BOS_ID), *range(BOS_ID + 1, len(rows)), BOS_ID]:
        if rows[i] in used:
            bias[i] += SILENCE
        used.add(rows[i])
    return bias


def arrange(names: Mapping[str, int], size: int, special: Sequence[int], models: Sequence[bytes]) -> Vocabulary:
    """Return the vocabulary of embeddings with `size` rows. `names`: the row of each piece that has one.

    `special`: the rows of padding, of unknown pieces, of the start and of the end of an output. A piece of the SentencePiece
    `models` without a row takes that of unknown pieces.
    """
    by_row = {row: piece for piece, row in names.items()}
    if max(by_row) >= size:
        raise UserError(f"its vocabulary names row {max(by_row):,}, but its embeddings have {size:,} rows")
    vocabulary = dict(zip(SPECIAL, special, strict=True))
    vocabulary |= {by_row.get(row, f"<row {row}>"): row for row in range(size) if row not in special}
    for model in models:
        for piece in ModelProto.FromString(model).pieces:
            if piece.type in SEGMENTING:
                vocabulary.setdefault(piece.piece, special[1])
    return vocabulary


def renumber(model: bytes, vocabulary: Vocabulary, marks: Collection[str]) -> bytes:
    """Return a SentencePiece model that segments as `model` does, with the ids of the vocabulary.

    Pieces that `model` lacks segment nothing. `marks`: pieces that are not text either.
    """
    proto = ModelProto.FromString(model)
    own = {piece.piece: piece for piece in proto.pieces if piece.type in SEGMENTING}
    last = min((piece.score for piece in own.values()), default=0.0) - 1  # BPE merges into unused pieces too: do so last

    def renumbered(name: str) -> Any:
        if name in SPECIAL:
            return Piece(piece=name, score=0, type=SPECIAL[name])
        return own.get(name) or Piece(piece=name, score=last, type=Piece.CONTROL if name in marks else Piece.UNUSED)

    pieces = [renumbered(name) for name in vocabulary]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    trainer = proto.trainer_spec
    trainer.vocab_size = len(pieces)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(len(SPECIAL))
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = SPECIAL
    return proto.SerializeToString()


def segmentation(model: bytes) -> dict[str, Any]:
    """Return the options of conf/tokenizer that say how a SentencePiece model segments."""
    trainer = ModelProto.FromString(model).trainer_spec
    return {"model_type": trainer.ModelType.Name(trainer.model_type).lower(), "byte_fallback": trainer.byte_fallback}


def weight_names(encoder_layers: int, decoder_layers: int) -> dict[str, str]:
    """Return the name here of each weight and bias, by its name in `transformers`; without embeddings and output."""
    names = {}
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        names[f"model.{side}.layer_norm"] = f"{side}_norm"
        for layer in range(layers):
            for theirs, ours in (PARTS | {"self_attn_layer_norm": SELF_NORM[side]}).items():
                names[f"model.{side}.layers.{layer}.{theirs}"] = f"{side}.{layer}.{ours}"
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in names.items() for kind in ("weight", "bias")}


def with_channels_in_order(weights: Weights, order: Tensor) -> Weights:
    """Return the same model with the channels of its hidden states, (D,), in another order; by this project's names."""
    ordered = {}
    for name, tensor in weights.items():
        if re.search(r"(W_o|outer|norm)\.(weight|bias)$", name):  # writes channels
            ordered[name] = tensor[order]
        else:  # reads channels, and has one bias for each of its own outputs
            ordered[name] = tensor[:, order] if tensor.dim() == 2 else tensor
    return ordered
