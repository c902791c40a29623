"""The encoder-decoder Transformer: embed, encode, decode, decode one step with a cache, reorder it.

Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. Shapes: B sentences, S source length, T target length, D model
width, V target vocabulary, K hypotheses of one sentence, N open ones of all B x K.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translator.config.options import ModelConfig
from translator.model.active_hypotheses import OpenRows
from translator.model.attention import MultiHeadAttention, forbidding, keys_mask, padding_mask
from translator.model.dropout import dropout
from translator.model.inference_layers import evened, linear_of, log_probabilities
from translator.model.kv_cache import KeyValueCache, Past, move_to_front
from translator.model.layers import DecoderLayer, EncoderLayer
from translator.model.positions import LearnedPositions, SinusoidalPositions
from translator.runtime.cpu import onednn
from translator.text.tokenizer import PAD_ID

# Source tokens that a CPU encodes, or projects for cross-attention, at once, but for a loss: those of 250 sentences of
# Multi30k left its cache, and twice that many took 1.5 s instead of 0.9. Each part is padded to its own longest sentence.
ENCODED_AT_ONCE = 1 << 10


class Embedding(nn.Module):
    """Token embeddings scaled by sqrt(D) (section 3.4), plus positions where the scheme adds them, with dropout."""

    def __init__(self, config: ModelConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model)
        self.positions: nn.Module | None = None
        if config.positions == "sinusoidal":
            self.positions = SinusoidalPositions(config.d_model)
        elif config.positions == "learned":
            self.positions = LearnedPositions(config.d_model, config.max_positions)
        self.dropout = config.dropout

    def forward(self, ids: Tensor, *, start: int = 0) -> Tensor:
        """ids (B, T), the first at position `start` -> (B, T, D)."""
        x = self.tokens(ids) * self.scale
        return dropout(x if self.positions is None else self.positions(x, start=start), self.dropout, self.training)


class TiedProjection(nn.Module):
    """To the V pieces whose embeddings stand first in a table, by these embeddings (section 3.4): (..., D) -> (..., V)."""

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


@dataclass
class DecoderState:
    """What step-wise decoding remembers of B sentences, with K hypotheses each."""

    caches: list[KeyValueCache]  # one a layer
    memory: list[tuple[Tensor, Tensor]]  # one a layer: cross-attention's keys and values, (B, H, S, head width)
    bias: Tensor | None  # (B, 1, 1, S), `forbidding` all but real source tokens; None: all are
    past: Past
    coverage: Tensor | None = None  # (B, K, S), the attention that each source token has had so far, if it is followed

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis k of sentence b continues hypothesis parents[b, k]; parents (B, K) may hold more or fewer than now."""
        self.past.reorder(parents)
        if (entries := self.past.drop_unseen()) is not None:
            for cache in self.caches:
                cache.keep(entries)
        if self.coverage is not None:
            self.coverage = self.coverage.gather(1, parents[:, :, None].expand(-1, -1, self.coverage.size(2)))

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (B',), in this order."""
        for cache in self.caches:
            cache.select(sentences)
        for held in self.memory:
            move_to_front(held, sentences)
        self.memory = [(keys[: len(sentences)], values[: len(sentences)]) for keys, values in self.memory]
        self.bias = None if self.bias is None else self.bias[sentences]
        self.past.select(sentences)
        if self.coverage is not None:
            self.coverage = self.coverage[sentences]


class Transformer(nn.Module):
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
        encoder = [EncoderLayer(config, window) for window in config.windows("encoder")]
        decoder = [DecoderLayer(config, window) for window in config.windows("decoder")]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        # Pre-norm layers leave their sum unnormalised; post-norm layers do not.
        self.encoder_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.output: nn.Linear | TiedProjection = (
            nn.Linear(config.d_model, target_vocab, bias=config.output_bias) if config.tied == "none"
            else TiedProjection(target_tokens, target_vocab, bias=config.output_bias))
        self._initialise()

    def _initialise(self) -> None:
        """Xavier-uniform matrices (Glorot and Bengio 2010; tensor2tensor's Transformer), zero biases, embeddings N(0, 1/D).

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
        """The embeddings of source and target, and the output projection's where it has its own: those that are tied once."""
        own = [self.output.weight] if isinstance(self.output, nn.Linear) else []
        return list(dict.fromkeys([self.source_embedding.tokens.weight, self.target_embedding.tokens.weight, *own]))

    def for_decoding(self) -> Transformer:
        """This model, not to be trained again: with an output projection of its own, and maps joined in attention."""
        self.eval()
        own = self.projection()
        self.output = linear_of(evened(own.weight), None if own.bias is None else evened(own.bias))
        for layer in list(self.modules()):
            if isinstance(layer, EncoderLayer | DecoderLayer):
                layer.self_attention.join("W_q", "W_k", "W_v")
            if isinstance(layer, DecoderLayer):
                layer.cross_attention.join("W_k", "W_v")
        return self

    def projection(self) -> nn.Linear:
        """The output projection as a layer by itself, (N, D) -> (N, V)."""
        bias = self.output.bias
        return linear_of(self.output.weight[: self.target_vocab], None if bias is None else bias[: self.target_vocab])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits for the token after each of target (B, T), given source (B, S): (B, T, V)."""
        return self.output(self._decode_all(source, target))[..., : self.target_vocab]

    def hidden(self, source: Tensor, target: Tensor, real: Tensor | None) -> Tensor:
        """What is left to project to the vocabulary, (N, D): the decoder's output at all B x T positions, or at `real` ones.

        target (B, T) may go over the source's sentences several times, all of them each time: they are encoded once.

        The loss projects these itself: the vocabulary is most of a small model's work, and padding needs none of it.
        """
        hidden = self._decode_all(source, target)
        return hidden.flatten(0, 1) if real is None else hidden[real]

    def _decode_all(self, source: Tensor, target: Tensor) -> Tensor:
        mask, times = padding_mask(source, PAD_ID), len(target) // len(source)
        mask = mask if mask is None else mask.repeat(times, 1, 1, 1)
        return self.decode(target, self.encode(source), mask)[0]

    def encode(self, source: Tensor) -> Tensor:
        """source (B, S) -> memory (B, S, D), in which padding may be anything."""
        parts = None if self.training else _parts(source != PAD_ID)
        if parts is None:
            return self._encode(source)
        encoded = [self._encode(source[part]) for part in parts]
        return torch.cat([F.pad(x, (0, 0, 0, source.size(1) - x.size(1))) for x in encoded])

    def _encode(self, source: Tensor) -> Tensor:
        mask = padding_mask(source, PAD_ID)
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x)

    def decode(
        self, target: Tensor, memory: Tensor, mask: Tensor | None, *, weights_of: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Hidden states (B, T, D) of target (B, T) given memory (B, S, D) and its padding mask (B, 1, 1, S).

        Also the cross-attention weights (B, H, T, S) of the layers of these numbers, in their order.
        """
        x = self.target_embedding(target)
        weights = []
        for number, layer in enumerate(self.decoder):
            x, layer_weights = layer(x, memory, mask, need_weights=number in weights_of)
            if layer_weights is not None:
                weights.append(layer_weights)
        return self.decoder_norm(x), weights

    def start(self, memory: Tensor, mask: Tensor, *, follow_coverage: bool = False) -> DecoderState:
        """The state before the first step, one hypothesis a sentence: memory (B, S, D), mask (B, S) of real tokens."""
        real, parts = keys_mask(mask), _parts(mask)
        return DecoderState(
            caches=[KeyValueCache() for _ in self.decoder],
            memory=[_keys_values(layer.cross_attention, memory, parts) for layer in self._decoder_layers()],
            bias=None if real is None else forbidding(real), past=Past(mask.device),
            coverage=torch.zeros(len(mask), 1, mask.size(1), device=mask.device) if follow_coverage else None)

    def decode_step(self, tokens: Tensor, state: DecoderState, rows: OpenRows | None = None) -> Tensor:
        """Feed the newest token of every hypothesis, (B, K); (N, D), of which `log_probabilities` tells the next.

        Updates `state`. rows: the N hypotheses that will be gone on with, by default all.
        """
        rows = OpenRows(*tokens.shape) if rows is None else rows
        with onednn(len(rows) > 1):  # which takes longer to begin than others take for a row
            return self._decode_step(tokens, state, rows)

    def _decode_step(self, tokens: Tensor, state: DecoderState, rows: OpenRows) -> Tensor:
        start = state.past.length
        state.past.append(tokens.size(1))
        x = self.target_embedding(rows.pack(tokens)[:, None], start=start)[:, 0]  # (N, D)
        aligned = () if state.coverage is None else self.alignment_layers
        for number, (layer, cache, memory) in enumerate(
                zip(self._decoder_layers(), state.caches, state.memory, strict=True)):
            x, weights = layer.step(x, rows, cache, state.past, memory, state.bias, need_weights=number in aligned)
            if weights is not None and state.coverage is not None:
                state.coverage = state.coverage + weights.mean(dim=1) / len(aligned)
        return self.decoder_norm(x)

    def log_probabilities(self, decoded: Tensor, some: slice) -> Tensor:
        """Of the next token after some of the rows (N, D) that have been decoded: (N', V or more), -inf beyond V."""
        with onednn(len(decoded) > 1):
            logits = self.output(decoded[some])
        logits[:, self.target_vocab :] = -torch.inf
        return log_probabilities(logits)

    @property
    def alignment_layers(self) -> range:
        """The decoder layers whose mean cross-attention says which source token a target token renders: all but the first.

        The first layer has not read the source yet when it chooses where to look. A single layer aligns alone.
        """
        return range(min(1, len(self.decoder) - 1), len(self.decoder))

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        return (layer for layer in self.decoder if isinstance(layer, DecoderLayer))


def _parts(real: Tensor) -> list[tuple[slice, slice]] | None:
    """The sentences, and their tokens, that a CPU takes at once, real (B, S) telling real tokens; None: all together."""
    if real.device.type != "cpu" or torch.compiler.is_compiling() or real.numel() <= ENCODED_AT_ONCE:
        return None
    size = max(1, ENCODED_AT_ONCE // real.size(1))
    parts = (slice(first, first + size) for first in range(0, len(real), size))
    return [(part, slice(int(real[part].any(dim=0).sum()))) for part in parts]


def _keys_values(
    attention: MultiHeadAttention, memory: Tensor, parts: list[tuple[slice, slice]] | None
) -> tuple[Tensor, Tensor]:
    """Those of memory (B, S, D) for cross-attention, (B, H, S, head width) each, laid out as products need them.

    Zero outside of `parts`, if they are given.
    """
    if parts is None:
        keys, values = attention.keys_values(memory)
        return keys.contiguous(), values.contiguous()
    of_parts = [attention.keys_values(memory[part]) for part in parts]
    shape = len(memory), attention.num_heads, memory.size(1), attention.head_width
    keys, values = (first.new_zeros(shape) for first in of_parts[0])
    for (sentences, tokens), (some_keys, some_values) in zip(parts, of_parts, strict=True):
        keys[sentences, :, tokens], values[sentences, :, tokens] = some_keys, some_values
    return keys, values
