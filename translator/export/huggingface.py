"""A trained model for Hugging Face's transformers, as the stock architecture that computes the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
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
from transformers.utils.logging import disable_progress_bar

from translator.config.options import ModelConfig
from translator.export.decoding import Decoding
from translator.inference.translator import Translator
from translator.model.transformer import Transformer
from translator.runtime.errors import UserError
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from translator.text.vocabulary import is_narrow

# By model.norm and model.positions. Of encoder-decoders with plain attention, these alone normalise nothing else besides.
ARCHITECTURES = {
    ("pre", "sinusoidal"): (PegasusConfig, PegasusForConditionalGeneration),
    ("post", "sinusoidal"): (MarianConfig, MarianMTModel),
    ("pre", "learned"): (BlenderbotConfig, BlenderbotForConditionalGeneration)}

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

Named = Iterator[tuple[str, Tensor]]


def write(translator: Translator, decoding: Decoding, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the model, how it generates, and its tokenizer; UserError for a model that transformers cannot express."""
    disable_progress_bar()
    source, target = translator.source_tokenizer, translator.target_tokenizer
    if is_narrow(source, target):  # theirs is one vocabulary, and what no target holds has no probability
        target = source
    elif source.tags:
        raise UserError(  # MarianTokenizer cuts a tag off before it splits the text, which then has other pieces
            "tokenizer.joint=false with several languages: transformers' tokenizer for two vocabularies does not split a text "
            "with a tag as ours does; train with tokenizer.joint=true")
    model = stock_model(translator.models[0], len(source), len(target), decoding.positions).to(dtype)
    model.generation_config = generation_config(decoding)
    model.save_pretrained(folder)
    _save_tokenizer(source, target, decoding.positions, folder)


def usage(translator: Translator, decoding: Decoding, name: str) -> str:
    """Python that translates by what stands in a folder, or on the hub, of this name."""
    return USAGE.format(name=name, limit=decoding.limit('batch["input_ids"].shape[1]'))


def decoder(
    folder: Path, decoding: Decoding, *, device: str, threads: int, batch_size: int
) -> Callable[[Sequence[str]], list[str]]:
    """What translates texts as the lines of `usage` do, so many of like length together, on so many threads."""
    torch.set_num_threads(threads)
    disable_progress_bar()
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto", trust_remote_code=False).to(device)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    config = generation_config(decoding)

    def translate(texts: Sequence[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found: dict[int, str] = {}
        for first in range(0, len(order), batch_size):
            some = order[first : first + batch_size]
            batch = tokenizer([texts[i] for i in some], return_tensors="pt", padding=True).to(device)
            config.max_new_tokens = 1 + decoding.most(batch["input_ids"].shape[1])
            outputs = model.generate(**batch, generation_config=config)
            found.update(zip(some, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True))
        return [found[i] for i in range(len(texts))]

    return translate


def push(folder: Path, repository: str) -> str:
    """Upload an export; the repository, USER/NAME, is made where there is none. Where it then stands."""
    api = HfApi()
    try:
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by translator")
    except Exception as error:  # in as many types as there are ways to fail: no token, not allowed, no network, a bad name
        raise UserError(f"push={repository}: the hub did not take it: {error}") from error
    return str(url)


def generation_config(decoding: Decoding) -> GenerationConfig:
    """Beam search as `decoding` says; the most tokens of an output are told with each call, by its sources."""
    if decoding.search.beam_size > 1 and decoding.search.patience not in (None, 1):
        raise UserError(f"search.patience={decoding.search.patience:g}: transformers has only 1; set that, or null")
    # Not stopping early unless that is wanted: open hypotheses that can still win go on, as in ours.
    stopping = decoding.search.patience == 1 or ("never" if decoding.search.keep_places else False)
    beams = {"length_penalty": decoding.length_penalty, "early_stopping": stopping} if decoding.search.beam_size > 1 else {}
    return GenerationConfig(
        num_beams=decoding.search.beam_size, **beams, min_new_tokens=1, max_new_tokens=decoding.positions - 1,
        suppress_tokens=[PAD_ID, UNK_ID, BOS_ID], **MARKERS)


@torch.no_grad()
def stock_model(model: Transformer, source_vocab: int, target_vocab: int, positions: int) -> Any:
    """The same model by transformers."""
    config = model.config
    _require_expressible(config)
    config_class, model_class = ARCHITECTURES[config.norm, config.positions]
    tied: dict[str, Any] = {"tie_word_embeddings": config.tied == "all"}
    if model_class is MarianMTModel:
        tied = {"tie_word_embeddings": config.tied != "none", "share_encoder_decoder_embeddings": config.tied == "all",
                "decoder_vocab_size": target_vocab}
    else:  # the others have vocabularies of one size
        source_vocab = target_vocab = max(source_vocab, target_vocab)
    stock = model_class(config_class(
        vocab_size=source_vocab, d_model=config.d_model, max_position_embeddings=positions, scale_embedding=True,
        encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, activation_function=config.activation,
        dropout=config.dropout, attention_dropout=config.attention_dropout, activation_dropout=config.activation_dropout,
        **MARKERS, **tied)).eval()
    weights = dict(_weights(model, source_vocab, target_vocab, positions))
    stock.load_state_dict({name: weights[name] for name in stock.state_dict()})
    return stock


def _require_expressible(config: ModelConfig) -> None:
    if (config.norm, config.positions) not in ARCHITECTURES:
        raise UserError(
            f"model.positions={config.positions} with model.norm={config.norm}: transformers has no stock model of this kind; "
            f"it has {', '.join(f'{positions} with {norm}' for norm, positions in ARCHITECTURES)}")
    if config.activation == "swiglu":
        raise UserError("model.activation=swiglu: transformers has no stock model of this kind; it has relu, gelu and silu")
    for side in ("encoder", "decoder"):
        if any(config.windows(side)):
            raise UserError(f"model.{side}_window: transformers has no stock model of this kind; it sees whole sentences")


def _weights(model: Transformer, source_vocab: int, target_vocab: int, positions: int) -> Named:
    """The weights under transformers' names; tables padded to the vocabularies' sizes."""
    width = model.config.d_model
    order = torch.arange(width)
    if model.config.positions == "sinusoidal":  # theirs have all sines first, then the cosines
        order = torch.cat([order[0::2], order[1::2]])

    def table(weight: Tensor, vocab: int) -> Tensor:
        return F.pad(weight[:, order], (0, 0, 0, vocab - len(weight)))

    projection = model.projection()
    bias = torch.zeros(len(projection.weight)) if projection.bias is None else projection.bias
    yield "final_logits_bias", F.pad(bias, (0, target_vocab - len(bias)), value=-torch.inf)[None]
    own = model.config.tied == "none"
    yield "lm_head.weight", table(projection.weight if own else model.target_embedding.tokens.weight, target_vocab)
    yield "model.shared.weight", table(model.source_embedding.tokens.weight, source_vocab)
    for side, vocab, embedding, layers, norm in (
            ("encoder", source_vocab, model.source_embedding, model.encoder, model.encoder_norm),
            ("decoder", target_vocab, model.target_embedding, model.decoder, model.decoder_norm)):
        assert embedding.positions is not None
        yield f"model.{side}.embed_tokens.weight", table(embedding.tokens.weight, vocab)
        yield f"model.{side}.embed_positions.weight", embedding.positions(torch.zeros(1, positions, width))[0, :, order]
        for number, layer in enumerate(layers):
            yield from _layer(f"model.{side}.layers.{number}", layer, order)
        if model.config.norm == "pre":
            yield from _writing(f"model.{side}.layer_norm", norm, order)


def _layer(name: str, layer: Any, order: Tensor) -> Named:
    """Of an encoder or a decoder layer, whose inputs and outputs have their channels in this order."""
    yield from _attention(f"{name}.self_attn", layer.self_attention, order)
    if hasattr(layer, "cross_attention"):
        yield from _writing(f"{name}.self_attn_layer_norm", layer.around_self.norm, order)
        yield from _attention(f"{name}.encoder_attn", layer.cross_attention, order)
        yield from _writing(f"{name}.encoder_attn_layer_norm", layer.around_cross.norm, order)
    else:
        yield from _writing(f"{name}.self_attn_layer_norm", layer.around_attention.norm, order)
    yield from _reading(f"{name}.fc1", layer.feed_forward.inner, order)
    yield from _writing(f"{name}.fc2", layer.feed_forward.outer, order)
    yield from _writing(f"{name}.final_layer_norm", layer.around_feed_forward.norm, order)


def _attention(name: str, attention: Any, order: Tensor) -> Named:
    for theirs, ours in zip(("q_proj", "k_proj", "v_proj"), attention.maps(), strict=True):
        yield from _reading(f"{name}.{theirs}", ours, order)
    yield from _writing(f"{name}.out_proj", attention.W_o, order)


def _reading(name: str, linear: Any, order: Tensor) -> Named:
    """Of a linear map that takes channels in this order."""
    yield f"{name}.weight", linear.weight[:, order]
    yield f"{name}.bias", linear.bias


def _writing(name: str, linear: Any, order: Tensor) -> Named:
    """Of a linear map, or a normalisation, that gives channels in this order."""
    yield f"{name}.weight", linear.weight[order]
    yield f"{name}.bias", linear.bias[order]


def _save_tokenizer(source: Tokenizer, target: Tokenizer, longest: int, folder: Path) -> None:
    """As a class that leaves all splitting and joining to SentencePiece, and takes no text for a special token."""
    options: dict[str, Any] = {"split_special_tokens": True, "model_max_length": longest, "bos_token": "<s>"}
    tokenizer: Any
    if source is target:
        source.save(folder / "sentencepiece.bpe.model")
        tokenizer = Speech2TextTokenizer(
            _save_vocabulary(source, folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), **options)
    else:
        source.save(folder / "source.spm")
        target.save(folder / "target.spm")
        tokenizer = MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), _save_vocabulary(source, folder / "vocab.json"),
            _save_vocabulary(target, folder / "target_vocab.json"), separate_vocabs=True, **options)
    tokenizer.save_pretrained(folder)


def _save_vocabulary(tokenizer: Tokenizer, path: Path) -> str:
    pieces = tokenizer.pieces(range(len(tokenizer)))
    path.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}, ensure_ascii=False), encoding="utf-8")
    return str(path)
