"""Models with random weights, batches for them, and PyTorch's own modules with the same weights."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from tests.support.configurations import model_config, run_config
from tests.support.corpora import PAIRS
from translator.config.options import ModelConfig
from translator.data.batching import Batch, collate
from translator.model.attention import (
    MultiHeadAttention,
)
from translator.model.layers import DecoderLayer
from translator.model.transformer import Transformer
from translator.runtime.device import Precision
from translator.text.tokenizer import PAD_ID, Tokenizer
from translator.training.teacher import Teacher
from translator.training.updater import Updater


def batch_of(*lengths: tuple[int, int], seed: int = 1) -> Batch:
    """Pairs of random ids of a vocabulary of 40, of these lengths."""
    torch.manual_seed(seed)
    sources, targets = ([torch.randint(4, 40, (n,)).tolist() for n in side] for side in zip(*lengths, strict=True))
    return collate(sources, targets)


def random_model(
    config: ModelConfig | None = None, *, vocab: int | tuple[int, int] = 40, seed: int = 0
) -> Transformer:
    """A random model in eval mode, with every zero-initialised bias made random: a test must see it.

    `vocab`: that of both sides, or the source's and the target's.
    """
    torch.manual_seed(seed)
    sizes = vocab if isinstance(vocab, tuple) else (vocab, vocab)
    model = Transformer(config or model_config(), *sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return model


def model_of_pairs(tokenizer: Tokenizer) -> Transformer:
    """A model that has learned PAIRS: it says words."""
    model = random_model(vocab=len(tokenizer), seed=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sources, targets = (tokenizer.encode(side) for side in zip(*PAIRS, strict=True))
    batches = [collate(sources[part::4], targets[part::4]) for part in range(4)]
    for batch in batches * 40:
        optimizer.zero_grad()
        logits = model(batch.source, batch.target_in)
        torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.target_out, ignore_index=PAD_ID).backward()
        optimizer.step()
    return model


def updater_of(
    *options: str, precision: Precision = Precision.FP32, device: torch.device | str = "cpu", teacher: Teacher | None = None,
    **model: object,
) -> Updater:
    """One of a random model of this configuration, with these options of training."""
    config = run_config("optim.lr=1e-3", *options)
    student = random_model(model_config(**model)).to(device)
    return Updater(student, config.optim, config.train, precision=precision, teacher=teacher)


def teacher_of(*seeds: int, vocab: int = 40) -> Teacher:
    """Random models of another shape than `model_config()`."""
    config = model_config(d_model=16, num_heads=2, norm="post", output_bias=True, dropout=0.5)
    return Teacher([random_model(config, seed=seed, vocab=vocab) for seed in seeds], digest=f"of {seeds}")


def causal_mask(query_length: int, key_length: int) -> Tensor:
    """Each query sees itself and what came before: (T, S). The queries are the last T of the S positions."""
    return torch.ones(query_length, key_length, dtype=torch.bool).tril(key_length - query_length)


def attention_of_torch(torch_module: nn.MultiheadAttention, **options: object) -> MultiHeadAttention:
    ours = MultiHeadAttention(torch_module.embed_dim, torch_module.num_heads, **options)
    with torch.no_grad():
        for name, weight, bias in zip(
                ("W_q", "W_k", "W_v"), torch_module.in_proj_weight.chunk(3), torch_module.in_proj_bias.chunk(3), strict=True):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
        ours.W_o.load_state_dict(torch_module.out_proj.state_dict())
    return ours


MODEL_VARIANTS = [
    {"positions": positions, "norm": norm, "encoder_window": window, "decoder_window": window}
    for positions, norm, window in itertools.product(
        ("sinusoidal", "learned", "rotary", "relative"), ("pre", "post"), (None, [2, None]))
] + [
    {"activation": "swiglu", "encoder_layers": 3, "decoder_layers": 1, "tied": "target"},
    {"activation": "gelu", "tied": "none"},
    {"positions": "alibi", "decoder_window": 3},
    {"attention": "additive", "attention_gate": True},
    {"attention": "additive", "positions": "rotary", "encoder_window": 2, "decoder_window": 2},
    {"adaptive_span": 2, "positions": "relative", "attention_gate": True},
    {"encoder_heads": [3, 1], "decoder_heads": [1, 2], "cross_heads": [2, 4], "positions": "rotary"},
    {"encoder_heads": [3, 1], "cross_heads": [2, 4], "head_width": 6, "attention": "additive", "attention_gate": True,
     "adaptive_span": 2, "positions": "alibi"},
    {"decoder": "ssru"},
    {"decoder": "ssru", "norm": "post"},
    {"decoder": "ssru", "positions": "relative", "adaptive_span": 2, "encoder_window": 2}]


def copy_layer_into_torch(ours: nn.Module, theirs: nn.Module) -> None:
    attentions = [(ours.self_attention, theirs.self_attn)]
    residuals = [(ours.around_feed_forward, theirs.norm2), (getattr(ours, "around_attention", None), theirs.norm1)]
    if isinstance(ours, DecoderLayer):
        attentions.append((ours.cross_attention, theirs.multihead_attn))
        residuals = [
            (ours.around_self, theirs.norm1), (ours.around_cross, theirs.norm2), (ours.around_feed_forward, theirs.norm3)]
    for mine, other in attentions:
        other.in_proj_weight.copy_(torch.cat([mine.W_q.weight, mine.W_k.weight, mine.W_v.weight]))
        other.in_proj_bias.copy_(torch.cat([mine.W_q.bias, mine.W_k.bias, mine.W_v.bias]))
        other.out_proj.load_state_dict(mine.W_o.state_dict())
    for residual, norm in residuals:
        norm.load_state_dict(residual.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
