"""Write a model for Hugging Face's transformers, as the stock architecture that computes the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers.utils.logging import disable_progress_bar

from translator.inference.decoding import Decoding, require_supported
from translator.inference.heads import full_maps
from translator.inference.translator import Translator
from translator.model.attention import MultiHeadAttention
from translator.model.transformer import Transformer
from translator.pretrained.huggingface import weight_names, with_channels_in_order
from translator.runtime.atomic_files import Weights
from translator.runtime.errors import UserError
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, is_narrow

# By model.norm and model.positions. Among encoder-decoders with plain attention, only these normalise nothing else.
ARCHITECTURES: dict[tuple[str, str], Any] = {
    ("pre", "sinusoidal"): transformers.PegasusForConditionalGeneration,
    ("post", "sinusoidal"): transformers.MarianMTModel,
    ("pre", "learned"): transformers.BlenderbotForConditionalGeneration}
# Values that can be written, by option of conf/model.
SUPPORTED = {
    "norm": ("pre", "post"), "activation": ("relu", "gelu", "silu"), "positions": ("sinusoidal", "learned"),
    "tied": ("none", "target", "all"), "encoder_window": (None,), "decoder_window": (None,)}
MARKERS: dict[str, Any] = {
    "pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "decoder_start_token_id": BOS_ID,
    "forced_eos_token_id": EOS_ID}
LIBRARY = "transformers"
USAGE = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

name = {name!r}
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)

batch = tokenizer(["Where is the train station?", "I like tea."], return_tensors="pt", padding=True)
outputs = model.generate(**batch, max_new_tokens=1 + {limit})
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
"""


def write(translator: Translator, decoding: Decoding, folder: Path) -> None:
    """Write the model, its generation config and its tokenizer. Raises UserError for a model or a search it cannot express."""
    disable_progress_bar()
    source, target = translator.source_tokenizer, translator.target_tokenizer
    if is_narrow(source, target):  # one vocabulary there, in which pieces that no target holds have no probability
        target = source
    elif source.tags:  # MarianTokenizer cuts a tag off before it splits the text, which then has other pieces
        raise UserError(
            "tokenizer.joint=false with several languages: transformers' tokenizer for two vocabularies splits a text with a "
            "tag differently. Train with tokenizer.joint=true.")
    model = stock_model(translator.models[0], len(source), len(target), decoding.positions)
    model.generation_config = generation_config(decoding)
    model.save_pretrained(folder)
    _save_tokenizer(source, target, decoding.positions, folder)


def usage(translator: Translator, decoding: Decoding, name: str) -> str:
    """Return Python code that translates with the export of this name, a folder or a hub id."""
    return USAGE.format(name=name, limit=decoding.limit('batch["input_ids"].shape[1]'))


def generation_config(decoding: Decoding) -> transformers.GenerationConfig:
    """Return the options of the same beam search; each call sets the longest output by its sources."""
    if decoding.search.beam_size > 1 and decoding.search.patience not in (None, 1):
        raise UserError(f"search.patience={decoding.search.patience:g}: transformers supports only 1. Set that, or null.")
    # By default search continues while open hypotheses can still win, as here.
    stopping = decoding.search.patience == 1 or ("never" if decoding.search.keep_places else False)
    beams = {"length_penalty": decoding.length_penalty, "early_stopping": stopping} if decoding.search.beam_size > 1 else {}
    return transformers.GenerationConfig(
        num_beams=decoding.search.beam_size, **beams, min_new_tokens=1, max_new_tokens=decoding.positions - 1,
        suppress_tokens=[PAD_ID, UNK_ID, BOS_ID], **MARKERS)


@torch.no_grad()
def stock_model(model: Transformer, source_vocab: int, target_vocab: int, positions: int) -> Any:
    """Return the same model in `transformers`, with tables of these sizes."""
    config = model.config
    require_supported(config, "transformers", SUPPORTED)
    if (config.norm, config.positions) not in ARCHITECTURES:
        pairs = ", ".join(f"{positions} with {norm}" for norm, positions in ARCHITECTURES)
        raise UserError(f"model.positions={config.positions} with model.norm={config.norm}: transformers has no such model. "
                        f"Train one with {pairs}.")
    model_class = ARCHITECTURES[config.norm, config.positions]
    tied: dict[str, Any] = {"tie_word_embeddings": config.tied == "all"}
    if model_class is transformers.MarianMTModel:
        tied = {"tie_word_embeddings": config.tied != "none", "share_encoder_decoder_embeddings": config.tied == "all",
                "decoder_vocab_size": target_vocab}
    else:  # the others have one size of vocabulary
        source_vocab = target_vocab = max(source_vocab, target_vocab)
    stock = model_class(model_class.config_class(
        vocab_size=source_vocab, d_model=config.d_model, max_position_embeddings=positions, scale_embedding=True,
        encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, activation_function=config.activation,
        dropout=config.dropout, attention_dropout=config.attention_dropout, activation_dropout=config.activation_dropout,
        **MARKERS, **tied)).eval()
    weights = _weights(model, source_vocab, target_vocab, positions)
    stock.load_state_dict({name: weights[name] for name in stock.state_dict()})
    return stock


def _weights(model: Transformer, source_vocab: int, target_vocab: int, positions: int) -> Weights:
    """Return the weights under the names of `transformers`; tables padded to the vocabularies' sizes."""
    config = model.config
    order = torch.arange(config.d_model)
    if config.positions == "sinusoidal":  # there all sines come first, then the cosines
        order = torch.cat([order[0::2], order[1::2]])
    ours = with_channels_in_order(_layer_weights(model), order)
    weights = {name: ours[our_name] for name, our_name in weight_names(config.encoder_layers, config.decoder_layers).items()
               if our_name in ours}

    def table(weight: Tensor, vocab: int) -> Tensor:
        return F.pad(weight[:, order], (0, 0, 0, vocab - len(weight)))

    for side, vocab, embedding in (
            ("encoder", source_vocab, model.source_embedding), ("decoder", target_vocab, model.target_embedding)):
        assert embedding.positions is not None
        weights[f"model.{side}.embed_tokens.weight"] = table(embedding.tokens.weight, vocab)
        weights[f"model.{side}.embed_positions.weight"] = embedding.positions(
            torch.zeros(1, positions, config.d_model))[0, :, order]
    projection = model.projection()
    bias = torch.zeros(len(projection.weight)) if projection.bias is None else projection.bias
    output = projection.weight if config.tied == "none" else model.target_embedding.tokens.weight
    return weights | {
        "model.shared.weight": weights["model.encoder.embed_tokens.weight"], "lm_head.weight": table(output, target_vocab),
        "final_logits_bias": F.pad(bias, (0, target_vocab - len(bias)), value=-torch.inf)[None]}


def _layer_weights(model: Transformer) -> Weights:
    """Return the weights of all layers by name, with all heads, whether or not attention has joined maps for decoding."""
    weights = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            for part, linear in zip(("W_q", "W_k", "W_v", "W_o"), full_maps(module, model.config.num_heads), strict=True):
                weights |= {f"{name}.{part}.weight": linear.weight, f"{name}.{part}.bias": linear.bias}
    return weights


def _save_tokenizer(source: Tokenizer, target: Tokenizer, longest: int, folder: Path) -> None:
    """Save a tokenizer of a class that leaves all splitting to SentencePiece, and takes no text for a special token."""
    options: dict[str, Any] = {"split_special_tokens": True, "model_max_length": longest, "bos_token": "<s>"}
    tokenizer: Any
    if source is target:
        source.save(folder / "sentencepiece.bpe.model")
        tokenizer = transformers.Speech2TextTokenizer(
            _save_vocabulary(source, folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), **options)
    else:
        source.save(folder / "source.spm")
        target.save(folder / "target.spm")
        tokenizer = transformers.MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), _save_vocabulary(source, folder / "vocab.json"),
            _save_vocabulary(target, folder / "target_vocab.json"), separate_vocabs=True, **options)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("extra_special_tokens", None)  # an empty list, for which transformers 4 and optimum refuse the tokenizer
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _save_vocabulary(tokenizer: Tokenizer, path: Path) -> str:
    pieces = tokenizer.pieces(range(len(tokenizer)))
    path.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}, ensure_ascii=False), encoding="utf-8")
    return str(path)
