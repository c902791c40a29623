"""Decoding one token at a time, with the keys and values of earlier tokens in a cache.

Shapes: B sentences, S source length, D model width, V target vocabulary, K hypotheses of each sentence, N active ones of
all B x K, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from translator.model.active_hypotheses import ActiveHypotheses
from translator.model.alignment_heads import AlignmentHeads
from translator.model.attention import MultiHeadAttention, additive_mask, compute_attention, concatenate_heads, keys_mask
from translator.model.inference_layers import (
    JoinedAttention,
    join_maps,
    linear_of,
    log_probabilities,
    pad_outputs,
    split_joined,
)
from translator.model.kv_cache import KeyValueCache, Past, move_to_front
from translator.model.layers import DecoderLayer
from translator.model.positions import sum_biases
from translator.model.source_parts import keys_values_in_parts, split_source
from translator.model.ssru import SSRU, RecurrentState
from translator.runtime.device import onednn, to_matmul_dtype


@dataclass
class DecoderState:
    """What decoding step by step remembers of B sentences, with K hypotheses each."""

    caches: list[KeyValueCache]  # one a layer, of self-attention
    recurrent: list[RecurrentState]  # one a layer, of SSRUs
    memory: list[tuple[Tensor, Tensor]]  # one a layer: cross-attention's keys and values, (B, H, S, head width)
    bias: Tensor | None  # (B, 1, 1, S), hides padding of the source; None: no padding
    past: Past
    coverage: Tensor | None = None  # (B, K, S), the attention that each source token has had so far, if it is followed

    @property
    def layers(self) -> list[KeyValueCache | RecurrentState]:
        """What each layer remembers of the tokens so far."""
        return [*self.caches, *self.recurrent]

    def reorder(self, parents: Tensor) -> None:
        """Continue hypothesis parents[b, k] as hypothesis k of sentence b; parents (B, K) may change K."""
        for recurrent in self.recurrent:
            recurrent.reorder(parents)
        if self.caches:
            self.past.reorder(parents)
            if (entries := self.past.drop_unseen()) is not None:
                for cache in self.caches:
                    cache.keep(entries)
        if self.coverage is not None:
            self.coverage = self.coverage.gather(1, parents[:, :, None].expand(-1, -1, self.coverage.size(2)))

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (B',), in this order."""
        for layer in self.layers:
            layer.select(sentences)
        for keys_values in self.memory:
            move_to_front(keys_values, sentences)
        self.memory = [(keys[: len(sentences)], values[: len(sentences)]) for keys, values in self.memory]
        self.bias = None if self.bias is None else self.bias[sentences]
        self.past.select(sentences)
        if self.coverage is not None:
            self.coverage = self.coverage[sentences]


class IncrementalDecoder(nn.Module):
    """The part of a Transformer that search calls, besides `encode`."""

    target_vocab: int
    target_embedding: Any
    encoder: Any  # the layers
    decoder: Any
    decoder_norm: nn.Module
    output: Any  # (N, D) -> (N, V or more)
    alignment_heads: AlignmentHeads  # of cross-attention; coverage follows them too

    def for_decoding(self) -> Self:
        """Give this model an output projection of its own and joined maps in attention. It cannot be trained any more."""
        self.eval()
        own = self.projection()
        self.output = linear_of(pad_outputs(own.weight), None if own.bias is None else pad_outputs(own.bias))
        for attention in self.self_attentions():
            join_maps(attention, "W_q", "W_k", "W_v")
            attention.window = attention.reach()
        for layer in self.decoder:
            join_maps(layer.cross_attention, "W_k", "W_v")
        return self

    def self_attentions(self) -> list[MultiHeadAttention]:
        """Return every layer's self-attention, the encoder's first. A decoder of SSRUs has none."""
        parts = [layer.self_attention for layer in (*self.encoder, *self.decoder)]
        return [part for part in parts if isinstance(part, MultiHeadAttention)]

    def projection(self) -> nn.Linear:
        """Return the output projection as a layer of its own, (N, D) -> (N, V)."""
        bias = self.output.bias
        return linear_of(self.output.weight[: self.target_vocab], None if bias is None else bias[: self.target_vocab])

    def start(self, memory: Tensor, mask: Tensor, *, follow_coverage: bool = False) -> DecoderState:
        """Return the state before the first step, one hypothesis a sentence: memory (B, S, D), mask (B, S) of real tokens."""
        real, parts = keys_mask(mask), split_source(mask)
        return DecoderState(
            caches=[KeyValueCache() for layer in self.decoder if isinstance(layer.self_attention, MultiHeadAttention)],
            recurrent=[RecurrentState(memory) for layer in self.decoder if isinstance(layer.self_attention, SSRU)],
            memory=[keys_values_in_parts(layer.cross_attention, memory, parts) for layer in self.decoder],
            bias=None if real is None else additive_mask(real), past=Past(mask.device),
            coverage=torch.zeros(len(mask), 1, mask.size(1), device=mask.device) if follow_coverage else None)

    def decode_step(self, tokens: Tensor, state: DecoderState, rows: ActiveHypotheses | None = None) -> Tensor:
        """Feed the newest token of every hypothesis, (B, K), and return hidden states (N, D) for `log_probabilities`.

        Updates `state`. rows: the N active hypotheses, by default all.
        """
        rows = ActiveHypotheses(*tokens.shape) if rows is None else rows
        with onednn(len(rows) > 1):  # it takes longer to start than others take for one row
            position = state.past.length
            state.past.append(tokens.size(1))
            x: Tensor = self.target_embedding(rows.pack(tokens)[:, None], start=position)[:, 0]  # (N, D)
            aligned = () if state.coverage is None else self.alignment_heads.layers
            for number, (layer, cache, memory) in enumerate(zip(self.decoder, state.layers, state.memory, strict=True)):
                x, weights = layer_step(
                    layer, x, rows, cache, state.past, memory, state.bias, need_weights=number in aligned)
                if weights is not None and state.coverage is not None:
                    state.coverage = state.coverage + self.alignment_heads.of(weights) / len(aligned)
            return self.decoder_norm(x)

    def log_probabilities(self, decoded: Tensor, some: slice) -> Tensor:
        """Return the log-probabilities of the token after some of the decoded rows (N, D): (N', V or more), -inf beyond V."""
        with onednn(len(decoded) > 1):
            logits = self.output(decoded[some])
        logits[:, self.target_vocab :] = -torch.inf
        return log_probabilities(logits)


def layer_step(
    layer: DecoderLayer, x: Tensor, rows: ActiveHypotheses, cache: KeyValueCache | RecurrentState, past: Past,
    memory: tuple[Tensor, Tensor], bias: Tensor | None, *, need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute `DecoderLayer.forward` for the newest tokens, x (N, D) -> (N, D); weights (B, H, K, S) on request."""
    entered = layer.around_self.enter(x)
    if isinstance(cache, RecurrentState):
        y = layer.self_attention.step(entered, rows, cache)
    else:
        y = self_attention_step(layer.self_attention, entered, rows, cache, past)
    x = layer.around_self.leave(x, y)
    y, weights = cross_attention_step(
        layer.cross_attention, layer.around_cross.enter(x), rows, memory, bias, need_weights=need_weights)
    x = layer.around_cross.leave(x, y)
    y = layer.feed_forward(layer.around_feed_forward.enter(x))
    return layer.around_feed_forward.leave(x, y), weights


def self_attention_step(
    attention: MultiHeadAttention, x: Tensor, rows: ActiveHypotheses, cache: KeyValueCache, past: Past
) -> Tensor:
    """Attend from the newest tokens, x (N, D), to the past of each hypothesis, which `cache` and `past` hold: (N, D)."""
    if isinstance(attention, JoinedAttention):
        mapped = attention.joined(x)
    else:
        x = to_matmul_dtype(x)
        mapped = torch.cat([W(x) for W in attention.maps()], dim=1)
    newest = split_joined(rows.unpack(mapped), attention.num_heads, attention.head_width)  # (3, B, H, K, head width)
    if attention.rotary is not None:
        newest = torch.cat([attention.rotary(newest[:2], past.now), newest[2:]])
    cache.write(newest[1:], past)
    first = 0 if attention.window is None else int(
        torch.searchsorted(past.positions[: past.entries], past.length - 1 - attention.window))
    near = slice(first, past.reach)
    bias = None if past.bias is None else past.bias[..., near]
    if attention.biases:
        by_position = sum_biases(attention.biases, past.now, past.positions[near])
        bias = by_position if bias is None else by_position + bias
    keys, values = cache.held[:, :, :, near].unbind()
    heads, _ = compute_attention(newest[0], keys, values, score=attention.score, bias=bias)
    return attention.output(rows.pack(concatenate_heads(heads)), x)


def cross_attention_step(
    attention: MultiHeadAttention, x: Tensor, rows: ActiveHypotheses, memory: tuple[Tensor, Tensor], bias: Tensor | None, *,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend from the newest tokens, x (N, D), to the source: (N, D), and weights (B, H, K, S) on request.

    memory: keys and values (B, H, S, head width). All hypotheses of a sentence share them, as its queries.
    """
    queries = attention.split_heads(rows.unpack(attention.W_q(x)))
    heads, weights = compute_attention(queries, *memory, score=attention.score, bias=bias, need_weights=need_weights)
    return attention.output(rows.pack(concatenate_heads(heads)), x), weights
