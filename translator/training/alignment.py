"""Word alignment in training, by a lexicon of the training data: guide a head, and choose the heads that align words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from datasets import Dataset
from torch import Tensor

from translator.data.batching import collate
from translator.data.ibm_model_1 import learn_lexicon
from translator.data.lexicon import LEAST_AGREEMENT, Lexicon
from translator.data.preparation import Corpus
from translator.model.alignment_heads import AlignmentHeads
from translator.model.attention import padding_mask
from translator.model.transformer import Transformer
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.text.tokenizer import EOS_ID, PAD_ID

# Validation pairs that choose the heads, of at most this many tokens a side, and those read at once.
PAIRS, LONGEST, AT_ONCE = 500, 100, 125

# Added to attention before its logarithm.
LEAST_ATTENTION = 1e-6


def lexicon_of(folder: RunFolder, corpus: Corpus) -> Lexicon:
    """Return the lexicon in a run folder; where it has none, learn it from the training split into the folder."""
    lexicon = folder.load_lexicon(len(corpus.source_tokenizer), len(corpus.target_tokenizer))
    if lexicon is None:
        lexicon = learn_lexicon(corpus.train, len(corpus.target_tokenizer))
        folder.save_lexicon(lexicon)
    return lexicon


def guided_head(layers: int) -> AlignmentHeads:
    """Return the head to guide: one of the last decoder layer but one, or of the last where that is the first.

    Garg et al. 2019, https://arxiv.org/abs/1909.02074, section 3.2. The first layer chooses before it has read the source.
    """
    return AlignmentHeads((max(layers - 2, min(1, layers - 1)),), head=0)


def guidance(attention: Tensor, agreement: Tensor) -> Tensor:
    """Return the cross-entropy between links and attention, both (B, T, S), summed over target pieces (section 3.2).

    A piece counts as far as the lexicon knows its links.
    """
    return -(agreement * (attention + LEAST_ATTENTION).log()).sum()


def keep_alignment(model: Transformer, corpus: Corpus, folder: RunFolder) -> None:
    """Choose the heads of `model` that align words on the validation split; the model and its run folder keep them."""
    agreements = agreement_by_heads(model, lexicon_of(folder, corpus), corpus.validation)
    heads = max(agreements, key=agreements.__getitem__)  # of equals the first
    model.alignment_heads = heads
    folder.save_alignment(heads, agreement=round(agreements[heads], 4))
    which = "all heads" if heads.head is None else f"head {heads.head + 1}"
    log(f"alignment  by {which} of decoder layer {', '.join(str(layer + 1) for layer in heads.layers)}: "
        f"{agreements[heads]:.0%} of attention agrees with lexical links")


@torch.no_grad()
def agreement_by_heads(model: Transformer, lexicon: Lexicon, pairs: Dataset) -> dict[AlignmentHeads, float]:
    """Return the share of lexical links that are where attention is largest, by choice of heads; the usual choice first."""
    model.eval()
    right = dict.fromkeys(candidates(model.config.heads("cross")), 0)
    linked = 0
    for source, target_in, target in _batches(pairs, next(model.parameters()).device):
        _, weights = model.decode(
            target_in, model.encode(source), padding_mask(source, PAD_ID), weights_of=range(len(model.decoder)))
        links, known = most_probable_links(lexicon, source.cpu(), target.cpu())
        linked += int(known.sum())
        for heads in right:
            attention = heads.aligned(heads.mean([weights[layer] for layer in heads.layers]))
            right[heads] += int((known & (attention.argmax(dim=2).cpu() == links)).sum())
    return {heads: count / max(1, linked) for heads, count in right.items()}


def candidates(heads: Sequence[int]) -> list[AlignmentHeads]:
    """Return the choices of heads, by how many each layer has: one, a layer's, or those from a layer on; each in both rows."""
    layers = len(heads)
    several = [AlignmentHeads.usual(layers).layers, *(tuple(range(first, layers)) for first in range(layers)),
               *((layer,) for layer in range(layers))]
    choices = [*((of, None) for of in dict.fromkeys(several)),
               *(((layer,), head) for layer in range(layers) for head in range(heads[layer]))]
    return [AlignmentHeads(of, head, next_row) for next_row in (False, True) for of, head in choices]


def most_probable_links(lexicon: Lexicon, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of each target piece's most probable source piece, and which are links: twice (B, T)."""
    best = lexicon.agreement(source, target).max(dim=2)
    known = (best.values >= LEAST_AGREEMENT) & (target != EOS_ID) & (source.gather(1, best.indices) != EOS_ID)
    return best.indices, known


def _batches(pairs: Dataset, device: torch.device) -> Iterator[Sequence[Tensor]]:
    """Yield source, decoder input and target of the first pairs that are short enough."""
    columns = pairs.select_columns(["source_ids", "target_ids"])
    short = (row for row in columns if max(map(len, row.values())) <= LONGEST)
    chosen = [row for row, _ in zip(short, range(PAIRS), strict=False)]
    for first in range(0, len(chosen), AT_ONCE):
        rows = chosen[first : first + AT_ONCE]
        batch = collate([row["source_ids"] for row in rows], [row["target_ids"] for row in rows]).to(device)
        yield batch.source, batch.target_in, batch.target_out
