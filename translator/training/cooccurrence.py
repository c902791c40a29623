"""Embeddings to begin with: pieces that stand in the same pairs of sentences begin alike.

So do words and their translations, which is what cross-attention has to find out otherwise. Cross-language latent semantic
indexing (Dumais et al. 1997, AAAI Spring Symposium SS-97-05) of positive pointwise mutual information (Levy and Goldberg 2014,
https://papers.nips.cc/paper/5477-neural-word-embedding-as-implicit-matrix-factorization).
"""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from translator.data.preparation import Corpus
from translator.model.transformer import Transformer
from translator.text.vocabulary import is_narrow

# Pieces in the same pair that are counted, and pairs: enough for tens of thousands of sentences; of larger corpora a sample.
MOST_COUNTED, MOST_PAIRS = 20_000_000, 1_000_000
READ_PAIRS = 5_000
# Of an embedding's square, the share that comes from co-occurrence; the rest stays random, so that no two pieces are alike.
SHARE = 0.5
# Dimensions beyond those kept, and rounds, of the randomised decomposition (Halko et al. 2011, https://arxiv.org/abs/0909.4061).
EXTRA, ROUNDS = 16, 3


@torch.no_grad()
def embed_by_cooccurrence(model: Transformer, corpus: Corpus, seed: int) -> None:
    """Mix into the random embeddings of `model`, on the CPU, what follows from the pairs of train: a function of `seed`."""
    pieces, own = len(corpus.source_tokenizer), len(corpus.target_tokenizer)
    shift = 0 if is_narrow(corpus.source_tokenizer, corpus.target_tokenizer) else pieces  # of target ids behind the source's
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch calls its sparse matrices a beta
        torch.manual_seed(seed)
        vocab = max(pieces, shift + own)
        vectors = _vectors(_pieces_of_pairs(corpus, shift, vocab, seed), vocab, model.config.d_model)
    first, *others = model.tables()  # the source's, and where they are not the same the target's and the output's
    for table, rows in [(first, vectors[:pieces]), *((other, vectors[shift : shift + own]) for other in others)]:
        known = rows.norm(dim=1, keepdim=True) > 0
        table.copy_(torch.where(known, (1 - SHARE) ** 0.5 * table + SHARE**0.5 * rows, table))


def _pieces_of_pairs(corpus: Corpus, shift: int, vocab: int, seed: int) -> Tensor:
    """Which pieces, by ids below `vocab`, stand in each pair: (2, N), numbers of pair and piece."""
    ids = corpus.train.select_columns(["source_ids", "target_ids"]).with_format("arrow")
    rows = np.random.default_rng(seed).choice(len(ids), min(len(ids), MOST_PAIRS), replace=False)
    parts: list[np.ndarray] = []
    counted = 0
    for first in range(0, len(rows), READ_PAIRS):
        some = ids[rows[first : first + READ_PAIRS].tolist()]
        pairs, pieces = np.divmod(np.unique(np.concatenate([
            _numbered(some["source_ids"], vocab), _numbered(some["target_ids"], vocab) + shift])), vocab)
        together = np.bincount(pairs) ** 2
        before = counted + together.cumsum() - together
        parts.append(np.stack([first + pairs, pieces])[:, before[pairs] < MOST_COUNTED])
        counted += int(together.sum())
        if counted >= MOST_COUNTED:
            break
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _numbered(ids: pa.ChunkedArray, vocab: int) -> np.ndarray:
    """Each id of lists, plus `vocab` times the number of its list."""
    lengths = pc.list_value_length(ids).to_numpy()
    return np.repeat(np.arange(len(lengths)) * vocab, lengths) + pc.list_flatten(ids).to_numpy()


def _vectors(occurrences: Tensor, vocab: int, width: int) -> Tensor:
    """Unit vectors (V, D) of all pieces that co-occur with others more than by chance; zeros for the rest."""
    count = int(occurrences[0].max()) + 1
    stands = torch.sparse_coo_tensor(occurrences, torch.ones(occurrences.size(1)), (count, vocab))
    together = torch.sparse.mm(stands.t(), stands).coalesce()
    often = torch.sparse.sum(stands, 0).to_dense()
    first, second = together.indices()
    information = (together.values() * count / (often[first] * often[second])).log().clamp(min=0)
    matrix = torch.sparse_coo_tensor(together.indices(), information, together.shape).to_sparse_csr()  # faster
    basis = torch.randn(vocab, min(width + EXTRA, vocab))
    for _ in range(1 + 2 * ROUNDS):  # as `torch.svd_lowrank` has it, but without the transpose, which is the same and slower
        basis = torch.linalg.qr(matrix @ basis).Q
    strengths, directions = torch.linalg.eigh(basis.T @ (matrix @ basis))
    strongest = strengths.abs().topk(min(width, len(strengths))).indices
    vectors = torch.zeros(vocab, width)
    vectors[:, : len(strongest)] = basis @ directions[:, strongest] * strengths[strongest].abs().sqrt()
    norms = vectors.norm(dim=1, keepdim=True)
    rotation, _ = torch.linalg.qr(torch.randn(width, width))  # spreads what the directions hold over all heads
    return torch.where(norms > 1e-3, vectors / norms.clamp(min=1e-3), 0) @ rotation
