"""Initial embeddings from co-occurrence: pieces of the same sentence pairs, such as translations, start out similar.

Cross-language latent semantic indexing (Dumais et al. 1997, AAAI Spring Symposium SS-97-05) of positive pointwise mutual
information (Levy and Goldberg 2014, https://papers.nips.cc/paper/5477-neural-word-embedding-as-implicit-matrix-factorization).
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
from translator.text.tokenizer import is_narrow

# Most co-occurrences, and most pairs, that are counted: larger corpora are sampled.
MOST_COUNTED, MOST_PAIRS = 20_000_000, 1_000_000
READ_PAIRS = 5_000
# Fraction of an embedding's squared norm that comes from co-occurrence; the rest stays random, so that no two are equal.
FRACTION = 0.5


@torch.no_grad()
def embed_by_cooccurrence(model: Transformer, corpus: Corpus, seed: int) -> None:
    """Mix vectors of the training pairs into the random embeddings of `model`, which is on the CPU."""
    pieces, own = len(corpus.source_tokenizer), len(corpus.target_tokenizer)
    shift = 0 if is_narrow(corpus.source_tokenizer, corpus.target_tokenizer) else pieces
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch calls its sparse matrices a beta
        torch.manual_seed(seed)
        vocab = max(pieces, shift + own)
        vectors = _vectors(_pieces_of_pairs(corpus, shift, vocab, seed), vocab, model.config.d_model)
    first, *others = model.tables()  # of the source, and if not tied of target and output
    for table, rows in [(first, vectors[:pieces]), *((other, vectors[shift : shift + own]) for other in others)]:
        known = rows.norm(dim=1, keepdim=True) > 0
        table.copy_(torch.where(known, (1 - FRACTION) ** 0.5 * table + FRACTION**0.5 * rows, table))


def _pieces_of_pairs(corpus: Corpus, shift: int, vocab: int, seed: int) -> Tensor:
    """Return (2, N) numbers of pair and piece, for every piece that occurs in a pair; target ids are shifted."""
    ids = corpus.train.select_columns(["source_ids", "target_ids"]).with_format("arrow")
    rows = np.random.default_rng(seed).choice(len(ids), min(len(ids), MOST_PAIRS), replace=False)
    parts: list[np.ndarray] = []
    counted = 0
    for first in range(0, len(rows), READ_PAIRS):
        read = ids[rows[first : first + READ_PAIRS].tolist()]
        pairs, pieces = np.divmod(np.unique(np.concatenate([
            _numbered(read["source_ids"], vocab), _numbered(read["target_ids"], vocab) + shift])), vocab)
        cooccurrences = np.bincount(pairs) ** 2
        before = counted + cooccurrences.cumsum() - cooccurrences
        parts.append(np.stack([first + pairs, pieces])[:, before[pairs] < MOST_COUNTED])
        counted += int(cooccurrences.sum())
        if counted >= MOST_COUNTED:
            break
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _numbered(ids: pa.ChunkedArray, vocab: int) -> np.ndarray:
    """Add `vocab` times the number of its list to each id of lists."""
    lengths = pc.list_value_length(ids).to_numpy()
    return np.repeat(np.arange(len(lengths)) * vocab, lengths) + pc.list_flatten(ids).to_numpy()


def _vectors(occurrences: Tensor, vocab: int, width: int) -> Tensor:
    """Return unit vectors (V, D) of the pieces that co-occur with others more than by chance; zeros for the rest."""
    count = int(occurrences[0].max()) + 1
    occurs = torch.sparse_coo_tensor(occurrences, torch.ones(occurrences.size(1)), (count, vocab))
    joint = torch.sparse.mm(occurs.t(), occurs).coalesce()
    single = torch.sparse.sum(occurs, 0).to_dense()
    first, second = joint.indices()
    information = (joint.values() * count / (single[first] * single[second])).log().clamp(min=0)
    matrix = torch.sparse_coo_tensor(joint.indices(), information, joint.shape).to_sparse_csr()  # faster
    # `torch.svd_lowrank` (Halko et al. 2011, https://arxiv.org/abs/0909.4061) without its transposes: the matrix is symmetric.
    basis = torch.randn(vocab, min(width + 16, vocab))
    for _ in range(7):
        basis = torch.linalg.qr(matrix @ basis).Q
    strengths, directions = torch.linalg.eigh(basis.T @ (matrix @ basis))
    strongest = strengths.abs().topk(min(width, len(strengths))).indices
    vectors = torch.zeros(vocab, width)
    vectors[:, : len(strongest)] = basis @ directions[:, strongest] * strengths[strongest].abs().sqrt()
    norms = vectors.norm(dim=1, keepdim=True)
    rotation, _ = torch.linalg.qr(torch.randn(width, width))  # spreads what the directions hold over all heads
    return torch.where(norms > 1e-3, vectors / norms.clamp(min=1e-3), 0) @ rotation
