"""Models in the format of CTranslate2 (https://opennmt.net/CTranslate2), and the ones that run folders keep."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2
import numpy as np
import torch
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from ctranslate2.specs.common_spec import Activation
from torch import nn
from torch.nn import functional as F

from translator.config.options import ModelConfig
from translator.inference.decoding import require_supported
from translator.inference.heads import full_maps
from translator.model.attention import MultiHeadAttention
from translator.model.layers import GatedFeedForward
from translator.model.positions import MAX_DISTANCE, RelativeBias
from translator.model.transformer import Embedding, Transformer
from translator.runs.run_folder import ENGINE, RunFolder
from translator.runtime.atomic_files import read_plain
from translator.runtime.console import log
from translator.text.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizers

ACTIVATIONS = {"relu": Activation.RELU, "gelu": Activation.GELU, "silu": Activation.SWISH, "swiglu": Activation.SWISH}
# Values that can be written, by option of conf/model. Its sliding windows are for decoders without an encoder.
SUPPORTED = {
    "norm": ("pre", "post"), "activation": tuple(ACTIVATIONS), "positions": ("sinusoidal", "learned", "rotary", "relative"),
    "tied": ("none", "target", "all"), "encoder_window": (None,), "decoder_window": (None,)}
# Positions of a model that a run keeps, without learned ones.
POSITIONS = 2304
MARK = "sha256.json"  # the digests of its files
MODEL = "model.bin"  # the one with the weights
ABANDONED = 3600  # seconds after which an unfinished folder is taken for one of a killed process


def positions_of(config: ModelConfig) -> int:
    """Return the tokens that sources, and outputs with BOS, may have in a model that `load_converted` returns."""
    return config.max_positions if config.positions == "learned" else POSITIONS


def load_converted(run: RunFolder, load: Callable[[], Transformer], tokenizers: Tokenizers, compute_type: str) -> Any:
    """Return a `ctranslate2.Translator` of a run. Its weights are converted once and kept in the run's folder.

    load: returns the model in float32. UserError for a model that CTranslate2 cannot run.
    """
    config = run.load_config().model
    require_supported(config, "CTranslate2", SUPPORTED)

    def write(folder: Path) -> None:
        save_model(load(), tokenizers, positions_of(config), folder, "float32")

    options: dict[str, Any] = {"device": "cpu", "compute_type": compute_type, "intra_threads": torch.get_num_threads()}
    try:
        return ctranslate2.Translator(str(_converted(run, write)), **options)
    except OSError as error:  # a read-only folder, or a full disk
        log(f"{run.path}: cannot keep the model for CTranslate2: {error.strerror or error}. It is converted at each start")
    with TemporaryDirectory() as aside:
        write(Path(aside))
        return ctranslate2.Translator(aside, **options)


def _converted(run: RunFolder, write: Callable[[Path], None]) -> Path:
    """Return the folder with a run's model for CTranslate2: what it holds is of the same weights, and undamaged.

    `write` writes a model to a folder. It is called once for each version of the weights. OSError if that is impossible.
    """
    place = run.path / f"{ENGINE}{_digest_of(run)}"
    if _is_intact(place):
        return place
    for unfinished in run.path.glob(f".{ENGINE}*"):
        if time.time() - unfinished.stat().st_mtime > ABANDONED:
            shutil.rmtree(unfinished, ignore_errors=True)
    with TemporaryDirectory(prefix=f".{place.name}.", dir=run.path) as aside:
        partial = Path(aside) / place.name
        partial.mkdir()
        write(partial)
        digests = {file.name: _sha256(file) for file in partial.iterdir()}
        (partial / MARK).write_text(json.dumps(digests) + "\n", encoding="utf-8")
        if not _is_intact(place):  # another process may have written it meanwhile
            for old in run.path.glob(f"{ENGINE}*"):
                shutil.rmtree(old, ignore_errors=True)
            partial.rename(place)
    return place


def _digest_of(run: RunFolder) -> str:
    """Return a digest of all that makes a converted model."""
    digest = hashlib.sha256(repr((POSITIONS, run.load_config().model)).encode())
    for file in (run.model_file, *sorted(run.path.glob("tokenizer*.model"))):
        digest.update(_sha256(file).encode())
    return digest.hexdigest()[:16]


def _is_intact(folder: Path) -> bool:
    try:
        digests = json.loads(read_plain(folder / MARK))
        return MODEL in digests and all(_sha256(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _sha256(file: Path) -> str:
    if not file.is_file():  # a FIFO never ends
        raise FileNotFoundError(file)
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def save_model(model: Transformer, tokenizers: Tokenizers, positions: int, folder: Path, quantization: str) -> None:
    """Write a model and its vocabularies for CTranslate2. UserError for a model that it cannot run.

    positions: tokens that sources and outputs may reach. quantization: float32, float16 or int8.
    """
    spec = specification(model, positions)
    source, target = (tokenizer.pieces(range(len(tokenizer))) for tokenizer in tokenizers)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = target[UNK_ID], target[BOS_ID], target[EOS_ID]
    spec.config.decoder_start_token = target[BOS_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(folder))


@torch.no_grad()
def specification(model: Transformer, positions: int) -> TransformerSpec:
    """Return the weights under CTranslate2's names, with a table of `positions` rows."""
    config = model.config
    require_supported(config, "CTranslate2", SUPPORTED)
    options: dict[str, Any] = {
        "num_heads": config.num_heads, "pre_norm": config.norm == "pre", "activation": ACTIVATIONS[config.activation],
        "ffn_glu": config.activation == "swiglu", "relative_attention_bias": config.positions == "relative",
        "rotary_dim": 0 if config.positions == "rotary" else None, "rotary_interleave": False}
    encoder = TransformerEncoderSpec(config.encoder_layers, **options)
    decoder = TransformerDecoderSpec(config.decoder_layers, **options)
    source_vocab, target_vocab = len(model.source_embedding.tokens.weight), model.target_vocab
    _set_embedding(encoder, encoder.embeddings[0], model.source_embedding, source_vocab, positions)
    _set_embedding(decoder, decoder.embeddings, model.target_embedding, target_vocab, positions)
    layer: Any
    for spec, layer in zip(encoder.layer, model.encoder, strict=True):
        _set_attention(spec.self_attention, layer.self_attention, layer.around_attention.norm, config.num_heads)
        _set_feed_forward(spec.ffn, layer.feed_forward, layer.around_feed_forward.norm)
    for spec, layer in zip(decoder.layer, model.decoder, strict=True):
        _set_attention(spec.self_attention, layer.self_attention, layer.around_self.norm, config.num_heads)
        _set_attention(spec.attention, layer.cross_attention, layer.around_cross.norm, config.num_heads)
        _set_feed_forward(spec.ffn, layer.feed_forward, layer.around_feed_forward.norm)
    if config.norm == "pre":
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)
    _set_linear(decoder.projection, model.projection())
    return TransformerSpec(encoder, decoder)


def _set_embedding(spec: Any, tokens: Any, embedding: Embedding, vocab: int, positions: int) -> None:
    tokens.weight = embedding.tokens.weight[:vocab].numpy().copy()  # CTranslate2 quantises it in place
    if embedding.positions is not None:
        spec.position_encodings.encodings = embedding.positions(torch.zeros(1, positions, tokens.weight.shape[1]))[0].numpy()


def _set_attention(spec: Any, attention: MultiHeadAttention, norm: nn.LayerNorm, num_heads: int) -> None:
    queries, keys, values, output = full_maps(attention, num_heads)
    inputs = [(queries, keys, values)] if len(spec.linear) == 2 else [(queries,), (keys, values)]  # else cross-attention
    for part, linears in zip(spec.linear, [*inputs, (output,)], strict=True):
        _set_linear(part, *linears)
    _set_norm(spec.layer_norm, norm)
    if isinstance(attention.relative, RelativeBias):
        spec.relative_attention_bias = F.pad(attention.relative.bias.weight, (0, num_heads - attention.num_heads)).numpy()
        spec.relative_attention_max_distance = np.int32(MAX_DISTANCE)


def _set_feed_forward(spec: Any, feed_forward: Any, norm: nn.LayerNorm) -> None:
    if isinstance(feed_forward, GatedFeedForward):
        _set_linear(spec.linear_0, feed_forward.gate)
        _set_linear(spec.linear_0_noact, feed_forward.inner)
    else:
        _set_linear(spec.linear_0, feed_forward.inner)
    _set_linear(spec.linear_1, feed_forward.outer)
    _set_norm(spec.layer_norm, norm)


def _set_linear(spec: Any, *linears: Any) -> None:
    """Set one linear map from several that read the same input."""
    spec.weight = torch.cat([linear.weight for linear in linears]).numpy()
    if linears[0].bias is not None:
        spec.bias = torch.cat([linear.bias for linear in linears]).numpy()


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.numpy(), norm.bias.numpy()
