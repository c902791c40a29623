"""Label-smoothed cross-entropy of a projection to the vocabulary, as a sum over tokens.

With R-Drop, SimCut, distillation and sampled softmax.

Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7; Vaswani et al. 2017, section 5.4. The caller divides
once, by the real target tokens of a whole update, so that batches weigh what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from translator.model.inference_layers import pad_outputs
from translator.runtime.device import matmul_dtype
from translator.runtime.seeds import random_fractions

# Tokens whose logits are held at once. With fewer the whole weight is read and written more often.
TOKENS_AT_ONCE = {"cpu": 2**10, "cuda": 2**13}
# Of these, tokens whose float32 softmax is taken at once: as many as fit in a CPU's cache; elsewhere all.
SOFTMAXES_AT_ONCE = {"cpu": 2**5}
# The last chunk is padded with zeros to a multiple of this, so that products have few shapes (`tune_cpu` in
# translator/runtime/device.py says why).
TOKENS_TOGETHER = 2**6


class Projection(NamedTuple):
    """A teacher's hidden states of N tokens, and what projects them to V words."""

    hidden: Tensor  # (N, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)


class Terms(NamedTuple):
    """Weights of the terms of the loss."""

    target: float  # cross-entropy with the target word
    uniform: float  # with the uniform distribution
    teacher: float  # with the teachers' mean distribution
    r_drop: float


def projected_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, *, real: Tensor | None = None, passes: int = 1,
                            bias: Tensor | None = None, smoothing: float = 0.0, r_drop: float = 0.0,
                            teachers: Sequence[Projection] = (), distillation: float = 0.0,
                            sample: int = 0) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed cross-entropy of softmax(hidden weight^T + bias), and the plain one, summed over N tokens.

    hidden (N, D), weight (V, D), bias (V,), targets (N,) -> two float32 scalars; the second, for perplexity, has no gradient.
    Products run in autocast's precision. real (N,): which tokens count; None: all.

    passes=2: hidden (2 N, D) holds two passes over the same tokens, one after the other. Both results are then their means,
    and r_drop times the mean of KL(p1 || p2) and KL(p2 || p1), halved like the rest, is added to the loss
    (R-Drop: Liang et al. 2021, https://arxiv.org/abs/2106.14448, section 2.1, whose loss is the sum over both passes).

    teachers: the loss is 1 - distillation times the smoothed one, plus distillation times the cross-entropy with the mean of
    their distributions (Kim and Rush 2016, https://arxiv.org/abs/1606.07947, section 3.1).

    sample: estimate the softmax from this many words, and at least twice the distinct targets; 0: use all. On a GPU at least N:
    to count distinct targets would wait for it. Teachers' distributions are estimated from the same words. The logits,
    (N, V), never exist whole: the projection takes chunks of tokens.
    """
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    of_passes = hidden.unflatten(0, (passes, len(targets)))
    real = torch.ones_like(targets, dtype=torch.bool) if real is None else real
    word_weights = None
    least = 2 * len(targets.unique()) if sample and targets.device.type == "cpu" else len(targets)
    if sample and (size := max(sample, least)) < len(weight):
        words, word_weights, numbers = draw(targets, len(weight), size)
        weight, bias, targets = weight.index_select(0, words), None if bias is None else bias[words], numbers[targets]
        teachers = [Projection(h, w.index_select(0, words), None if b is None else b[words]) for h, w, b in teachers]
    learned = distillation if teachers else 0.0
    terms = Terms((1 - learned) * (1 - smoothing), (1 - learned) * smoothing, learned, r_drop)
    loss, nll = _ProjectedCrossEntropy.apply(
        of_passes, weight, bias, targets, real, word_weights, teachers, terms, matmul_dtype(hidden), needs_gradient)
    return loss / passes, nll.detach() / passes


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Compute loss and gradients in one pass: with smoothed targets q, the gradient of the logits is p - q.

    So hidden's is (p - q) weight, weight's (p - q)^T hidden and bias's p - q, summed over tokens. The uniform part of q adds
    the same for every token or word, so it is subtracted separately; only the rest of q is subtracted from p.

    A sampled word that stands for n words has log n added to its logits, and n times the uniform part.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, real: Tensor,
                word_weights: Tensor | None, teachers: Sequence[Projection], terms: Terms, dtype: torch.dtype,
                needs_gradient: bool) -> tuple[Tensor, Tensor]:
        """hidden (P, N, D): P passes, whose losses are summed. word_weights (V,): how many words each counts as; None: 1."""
        uniform = torch.full((len(weight),), terms.uniform / len(weight), device=weight.device)
        log_weights = None
        if word_weights is not None:
            uniform, log_weights = terms.uniform * word_weights / word_weights.sum(), word_weights.log()
        words, biases = _prepared(weight, bias, log_weights, dtype)
        of_teachers = [(h, *_prepared(w, b, log_weights, dtype)) for h, w, b in teachers]
        counted = real[:, None].to(hidden.dtype)
        hidden = hidden * counted  # the others add nothing
        # No matrix products: autocast would run them in half precision, whose numbers end at 65,504.
        sum_of_hidden = hidden.sum((0, 1), dtype=torch.float32)
        uniform_word = (uniform[:, None] * weight).sum(0)
        loss = -(sum_of_hidden * uniform_word).sum()
        if bias is not None:
            loss -= len(hidden) * real.sum() * (uniform * bias).sum()
        nll = torch.zeros((), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if needs_gradient else None
        weight_gradient = -uniform[:, None] * sum_of_hidden if needs_gradient else None
        bias_gradient = None if bias is None else -len(hidden) * real.sum() * uniform
        rows = len(hidden) + len(teachers)
        tokens_at_once = max(1, TOKENS_AT_ONCE.get(hidden.device.type, 2**10) // rows)
        softmaxes_at_once = max(1, SOFTMAXES_AT_ONCE.get(hidden.device.type, tokens_at_once) // rows)
        for start in range(0, len(targets), tokens_at_once):
            chunk = slice(start, start + tokens_at_once)
            tokens = len(targets[chunk])
            h = _padded(hidden[:, chunk].to(dtype))
            logits = F.linear(h, words, biases)
            of_words = logits[:, :tokens, : len(weight)]  # the rest is padding
            taught = of_words.new_empty(0, tokens, len(weight))  # (teachers, tokens, V)
            if of_teachers:
                taught = torch.stack([F.linear(_padded(h[chunk].to(dtype)), w, b) for h, w, b in of_teachers])
            for part, targets_of_part, real_of_part, taught_of_part in zip(
                    of_words.split(softmaxes_at_once, 1), targets[chunk].split(softmaxes_at_once),
                    real[chunk].split(softmaxes_at_once),
                    taught[:, :tokens, : len(weight)].split(softmaxes_at_once, 1), strict=True):
                loss_of_part, nll_of_part = _gradients_in_place(
                    part, targets_of_part, real_of_part, taught_of_part, log_weights, terms)
                loss += loss_of_part
                nll += nll_of_part
            if hidden_gradient is not None and weight_gradient is not None:
                hidden_gradient[:, chunk] = ((logits @ words)[:, :tokens] - uniform_word) * counted[chunk]
                weight_gradient += (logits.flatten(0, 1).T @ h.flatten(0, 1))[: len(weight)]
                if bias_gradient is not None:
                    bias_gradient += (of_words * counted[chunk].to(dtype)).sum((0, 1), dtype=torch.float32)
        if hidden_gradient is not None and weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, of_nll: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if gradient is None else gradient * of_loss for gradient in ctx.saved_tensors)
        return *gradients, None, None, None, None, None, None, None


def _prepared(weight: Tensor, bias: Tensor | None, log_weights: Tensor | None,
              dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return a projection's weight and bias as products take them. log_weights (V,): log of how many words each counts as."""
    if log_weights is not None:
        bias = log_weights + (0 if bias is None else bias)
    return pad_outputs(weight.to(dtype)), None if bias is None else pad_outputs(bias.to(dtype))


def _padded(h: Tensor) -> Tensor:
    """Pad a chunk of hidden states (..., N, D) with zeros to a multiple of `TOKENS_TOGETHER` tokens."""
    return F.pad(h, (0, 0, 0, -h.size(-2) % TOKENS_TOGETHER))


def _gradients_in_place(logits: Tensor, targets: Tensor, real: Tensor, taught: Tensor, log_weights: Tensor | None,
                        terms: Terms) -> tuple[Tensor, Tensor]:
    """Turn logits (P, N, V) of targets (N,) into gradients, of unreal tokens too, less the uniform part; return both losses.

    taught (K, N, V): the logits of K teachers.
    """
    scores = logits.float()
    targets = targets[:, None].expand(len(logits), -1, -1)
    p = scores.softmax(-1)
    # log p = score - log_normaliser, taken at the likeliest word, whose p never underflows.
    log_normaliser = scores.amax(-1) - p.amax(-1).log()
    nll = ((log_normaliser - scores.gather(-1, targets)[..., 0]) * real).sum()
    loss = terms.target * nll + terms.uniform * (log_normaliser * real).sum()
    if len(logits) == 2 and terms.r_drop:
        log_ratio = scores[0] - scores[1] - (log_normaliser[0] - log_normaliser[1])[:, None]
        divergence, gradients = _disagreement(p[0], p[1], log_ratio)
        loss += terms.r_drop * divergence
        for p_of_pass, gradient in zip(p, gradients, strict=True):
            p_of_pass.add_(gradient, alpha=terms.r_drop)
    if terms.teacher:
        q = taught.float().softmax(-1).mean(0)
        of_words = scores if log_weights is None else scores - log_weights
        loss += terms.teacher * ((log_normaliser - (q * of_words).sum(-1)) * real).sum()
        p.sub_(q, alpha=terms.teacher)
    p.scatter_add_(-1, targets, p.new_full((1, 1, 1), -terms.target).expand_as(targets))
    logits.copy_(p)
    return loss, nll


def _disagreement(p1: Tensor, p2: Tensor, log_ratio: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the mean of KL(p1 || p2) and KL(p2 || p1), summed over tokens, and its gradients at the logits of both.

    p1, p2 and log_ratio = log p1 - log p2 (N, V) -> a scalar, and twice (N, V). The gradient of KL(p1 || p2) is
    p1 (log_ratio - KL(p1 || p2)) at the first logits and p2 - p1 at the second.
    """
    gradient1, gradient2 = p1 * log_ratio, p2 * -log_ratio
    kl1, kl2 = gradient1.sum(-1, keepdim=True), gradient2.sum(-1, keepdim=True)
    gradient1.addcmul_(p1, 1 - kl1).sub_(p2)
    gradient2.addcmul_(p2, 1 - kl2).sub_(p1)
    return 0.5 * (kl1 + kl2).sum(), (gradient1.mul_(0.5), gradient2.mul_(0.5))


class Sample(NamedTuple):
    """C of V pieces, from which a sampled softmax estimates its sums over all."""

    pieces: Tensor  # (C,), distinct
    weights: Tensor  # (C,): how many pieces each stands for, at least 1
    numbers: Tensor  # (V,): the place in the sample of each sampled piece; undefined for the others


def draw(targets: Tensor, vocabulary: int, size: int) -> Sample:
    """Draw `size` < `vocabulary` pieces for a sampled softmax: the targets (N,), N <= size, and others at random.

    Bengio and Senécal 2008, https://doi.org/10.1109/TNN.2007.912312; Jean et al. 2015, https://arxiv.org/abs/1412.2007.
    The sum of weights x f over the sample is on average the sum of f over the vocabulary. Others are drawn without replacement
    by priority sampling (Duffield, Lund and Thorup 2007, https://doi.org/10.1145/1314690.1314696): the largest ratios of
    frequency to a random number; the largest ratio not drawn bounds the weights from below. Frequencies follow Zipf's law,
    one over the rank, since vocabularies list frequent pieces first.
    """
    frequencies = 1 / torch.arange(1, vocabulary + 1, device=targets.device)
    priorities = (frequencies / random_fractions(vocabulary, targets.device)).index_fill_(0, targets, torch.inf)
    best, order = priorities.topk(size + 1)
    pieces, threshold = order[:-1], best[-1]
    weights = (threshold / frequencies[pieces]).clamp(min=1).masked_fill_(best[:-1] == torch.inf, 1)
    numbers = pieces.new_zeros(vocabulary)
    numbers[pieces] = torch.arange(size, device=targets.device)
    return Sample(pieces, weights, numbers)
