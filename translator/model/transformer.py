"""The encoder-decoder Transformer.

Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. Shapes: B sentences, S source length, T target length, D model
width, V target vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translator.config.options import ModelConfig
from translator.model.alignment_heads import AlignmentHeads
from translator.model.attention import padding_mask
from translator.model.cpu_operations import dropout
from translator.model.incremental import IncrementalDecoder
from translator.model.layers import DecoderLayer, EncoderLayer
from translator.model.positions import build_positions
from translator.model.source_parts import in_parts
from translator.text.tokenizer import PAD_ID


class Embedding(nn.Module):
    """Token embeddings scaled by sqrt(D) (section 3.4), plus positions where the scheme adds them, with dropout."""

    def __init__(self, config: ModelConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model)
        self.positions = build_positions(config, "embeddings")
        self.dropout = config.dropout

    def forward(self, ids: Tensor, *, start: int = 0) -> Tensor:
        """ids (B, T), the first at position `start` -> (B, T, D)."""
        x = self.tokens(ids) * self.scale
        return dropout(x if self.positions is None else self.positions(x, start=start), self.dropout, self.training)


class TiedProjection(nn.Module):
    """Project to the V pieces whose embeddings come first in a table, by these (section 3.4): (..., D) -> (..., V)."""

    def __init__(self, table: nn.Embedding, vocab: int, *, bias: bool) -> None:
        super().__init__()
        self.table = table
        self.vocab = vocab
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    @property
    def weight(self) -> Tensor:
        return self.table.weight[: self.vocab]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Transformer(IncrementalDecoder):
    """Translate ids to logits. Source ids end in EOS; target ids start with BOS.

    Where one table is tied to all three, the target's pieces are the first of the source's, or all.
    """

    def __init__(self, config: ModelConfig, source_vocab: int, target_vocab: int) -> None:
        super().__init__()
        self.config = config
        self.target_vocab = target_vocab
        source_tokens = nn.Embedding(source_vocab, config.d_model)
        target_tokens = source_tokens if config.tied == "all" else nn.Embedding(target_vocab, config.d_model)
        self.source_embedding = Embedding(config, source_tokens)
        self.target_embedding = Embedding(config, target_tokens)
        self.encoder = nn.ModuleList(
            EncoderLayer(config.with_heads(heads), window)
            for heads, window in zip(config.heads("encoder"), config.windows("encoder"), strict=True))
        self.decoder = nn.ModuleList(
            DecoderLayer(config.with_heads(heads), window, cross)
            for heads, window, cross in zip(
                config.heads("decoder"), config.windows("decoder"), config.heads("cross"), strict=True))
        # Pre-norm layers leave their sum unnormalised; post-norm layers do not.
        self.encoder_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.output: nn.Linear | TiedProjection = (
            nn.Linear(config.d_model, target_vocab, bias=config.output_bias) if config.tied == "none"
            else TiedProjection(target_tokens, target_vocab, bias=config.output_bias))
        self.alignment_heads = AlignmentHeads.usual(config.decoder_layers)
        self._initialise()

    def _initialise(self) -> None:
        """Draw Xavier-uniform matrices (Glorot and Bengio 2010; tensor2tensor), zero biases, embeddings N(0, 1/D).

        Times sqrt(D), an embedding starts with unit variance, and as a tied output projection it gives logits of that scale.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for table in self.tables():
            nn.init.normal_(table, std=self.config.d_model**-0.5)

    def tables(self) -> list[Tensor]:
        """Return the embeddings of source and target, and the output projection's own if it has any; tied ones once."""
        own = [self.output.weight] if isinstance(self.output, nn.Linear) else []
        return list(dict.fromkeys([self.source_embedding.tokens.weight, self.target_embedding.tokens.weight, *own]))

    def spans(self) -> dict[str, list[Tensor]]:
        """Return the spans (H,) that self-attention of each layer has learned, in tokens, by side; empty without such spans."""
        if self.config.adaptive_span is None:
            return {}
        sides = ("encoder", "decoder") if self.config.decoder == "attention" else ("encoder",)
        return {side: [layer.self_attention.span.spans() for layer in getattr(self, side)] for side in sides}

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits for the token after each of target (B, T), given source (B, S): (B, T, V)."""
        hidden, _ = self.decode(target, self.encode(source), padding_mask(source, PAD_ID))
        return self.output(hidden)[..., : self.target_vocab]

    def hidden(self, source: Tensor, target: Tensor, real: Tensor | None) -> Tensor:
        """Return the hidden states to project to the vocabulary, (N, D): of all B x T positions, or of the `real` ones (B, T).

        target (B, T) may hold several targets of each source, all of them each time: sources are encoded once.
        The loss projects these: the vocabulary is most of a small model's work, and padding needs none of it.
        """
        hidden, _ = self.hidden_and_weights(source, target, real)
        return hidden

    def hidden_and_weights(
        self, source: Tensor, target: Tensor, real: Tensor | None, *, weights_of: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return `hidden`, and the cross-attention weights that `decode` returns."""
        hidden, weights = self.decode(target, self.encode(source), padding_mask(source, PAD_ID), weights_of=weights_of)
        return hidden.flatten(0, 1) if real is None else hidden[real], weights

    @in_parts
    def encode(self, source: Tensor) -> Tensor:
        """Encode source (B, S) as memory (B, S, D), in which padding may be anything."""
        mask = padding_mask(source, PAD_ID)  # (B, 1, 1, S)
        x = self.source_embedding(source)  # (B, S, D)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x)

    def decode(
        self, target: Tensor, memory: Tensor, mask: Tensor | None, *, weights_of: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return hidden states (B, T, D) of target (B, T) given memory (B, S, D) and its padding mask (B, 1, 1, S).

        Also the cross-attention weights (B, H, T, S) of the layers with these numbers, in their order.
        """
        x = self.target_embedding(target)  # (B, T, D)
        weights = []
        for number, layer in enumerate(self.decoder):
            x, layer_weights = layer(x, memory, mask, need_weights=number in weights_of)
            if layer_weights is not None:
                weights.append(layer_weights)
        return self.decoder_norm(x), weights
