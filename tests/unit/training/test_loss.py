"""The projected cross-entropy against its definition, its gradients against autograd's, and sums that add up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from translator.training import loss as loss_module
from translator.training.loss import Projection, projected_cross_entropy

SMOOTHINGS = [0.0, 0.1, 0.4]


def example(*, tokens: int = 13, width: int = 6, words: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(tokens, width, requires_grad=True), torch.randn(words, width, requires_grad=True)
    return hidden, weight, torch.randint(0, words, (tokens,))


def definition(hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    log_p = (hidden @ weight.T).log_softmax(-1)
    q = torch.full_like(log_p, smoothing / len(weight))
    q[torch.arange(len(targets)), targets] += 1 - smoothing
    return -(q * log_p).sum()


@pytest.fixture(
    params=[(1, 1), (8, 6), (2**10, 4), (2**10, 2**10)],
    ids=["row by row", "uneven chunks", "softmaxes a few at once", "one chunk"], autouse=True)
def chunks(request, monkeypatch):
    tokens, softmaxes = request.param
    monkeypatch.setitem(loss_module.TOKENS_AT_ONCE, "cpu", tokens)
    monkeypatch.setitem(loss_module.SOFTMAXES_AT_ONCE, "cpu", softmaxes)
    monkeypatch.setattr(loss_module, "TOKENS_TOGETHER", 4)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_value_and_gradients_are_those_of_the_definition(smoothing):
    hidden, weight, targets = example()
    loss, nll = projected_cross_entropy(hidden, weight, targets, smoothing=smoothing)
    (3 * loss).backward()
    ours = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    expected = definition(hidden, weight, targets, smoothing)
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, definition(hidden, weight, targets, 0.0), check_stride=False)
    torch.testing.assert_close(ours, (hidden.grad, weight.grad))


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_r_drop_averages_passes_and_adds_their_divergence(r_drop):
    hidden, weight, targets = example(tokens=26)
    targets = targets[:13]
    loss, nll = projected_cross_entropy(hidden, weight, targets, passes=2, smoothing=0.1, r_drop=r_drop)
    ours = torch.autograd.grad(loss, (hidden, weight))
    log_p1, log_p2 = (hidden @ weight.T).log_softmax(-1).chunk(2)
    divergence = (F.kl_div(log_p1, log_p2, log_target=True, reduction="sum")
                  + F.kl_div(log_p2, log_p1, log_target=True, reduction="sum")) / 2
    likelihoods = [definition(half, weight, targets, 0.1) for half in hidden.chunk(2)]
    expected = (likelihoods[0] + likelihoods[1] + r_drop * divergence) / 2
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, sum(definition(half, weight, targets, 0.0) for half in hidden.chunk(2)) / 2)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (hidden, weight)))


@pytest.mark.parametrize("teachers", [0, 1, 2])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_teachers_and_divergences_match_their_definitions(r_drop, teachers):
    """With padding and biases. Both passes have the same teachers."""
    hidden, weight, targets = example(tokens=26)
    bias, targets, real = torch.randn(11, requires_grad=True), targets[:13], torch.rand(13) < 0.7
    taught = [Projection(torch.randn(13, d), torch.randn(11, d), torch.randn(11) if d > 5 else None) for d in (5, 7)][:teachers]
    loss, nll = projected_cross_entropy(
        hidden, weight, targets, real=real, passes=2, bias=bias, smoothing=0.1, r_drop=r_drop,
        teachers=taught, distillation=0.3)
    q = 0.1 / 11 + 0.9 * F.one_hot(targets, 11)
    if taught:
        q = 0.7 * q + 0.3 * torch.stack([F.linear(*teacher).softmax(-1) for teacher in taught]).mean(0)
    log_p1, log_p2 = (F.linear(hidden, weight, bias).log_softmax(-1) * real.repeat(2)[:, None]).chunk(2)
    pairs = ((log_p2, log_p1), (log_p1, log_p2))
    there, back = (F.kl_div(*pair, log_target=True, reduction="none")[real].sum() for pair in pairs)
    entropies = [-(q * log_p).sum() for log_p in (log_p1, log_p2)]
    correct = [log_p.gather(1, targets[:, None]).sum() for log_p in (log_p1, log_p2)]
    expected, expected_nll = (sum(entropies) + r_drop * (there + back) / 2) / 2, -sum(correct) / 2
    torch.testing.assert_close((loss, nll), (expected, expected_nll))
    wanted = (hidden, weight, bias)
    for ours, theirs in zip(torch.autograd.grad(3 * loss, wanted), torch.autograd.grad(3 * expected, wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counting", [[True, False, True, True, False] * 2 + [True] * 3, [False] * 13], ids=["some", "none"])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_tokens_that_do_not_count_might_as_well_not_be_there(smoothing, with_bias, passes, counting):
    hidden, weight, targets = example(tokens=13 * passes)
    targets, real = targets[:13], torch.tensor(counting)
    bias = torch.randn(len(weight), requires_grad=True) if with_bias else None
    wanted = [hidden, weight, *([bias] if bias is not None else [])]
    options = {"bias": bias, "passes": passes, "smoothing": smoothing, "r_drop": 5.0 * (passes - 1)}
    loss, nll = projected_cross_entropy(hidden, weight, targets.where(real, 0), real=real, **options)
    ours = torch.autograd.grad(3 * loss, wanted)
    expected, expected_nll = projected_cross_entropy(hidden[real.repeat(passes)], weight, targets[real], **options)
    torch.testing.assert_close((loss, nll), (expected, expected_nll))
    torch.testing.assert_close(ours, torch.autograd.grad(3 * expected, wanted))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_in_bfloat16_it_stays_near(smoothing):
    hidden, weight, targets = example(tokens=200, width=64, words=300)
    expected = definition(hidden, weight / 8, targets, smoothing)
    exact = torch.autograd.grad(expected, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = projected_cross_entropy(hidden, weight / 8, targets, smoothing=smoothing)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)
    for got, wanted in zip(torch.autograd.grad(loss, (hidden, weight)), exact, strict=True):
        assert got.dtype == torch.float32
        assert (got - wanted).norm() < 0.01 * wanted.norm()


def test_vocabulary_sums_may_exceed_the_float16_range():
    hidden, weight, targets = example(tokens=200, width=64, words=300)
    hidden, weight = hidden + 1, weight / 8 + 0.1
    expected = definition(hidden, weight, targets, 0.1)
    assert (hidden @ weight.T).sum() > 4 * torch.finfo(torch.float16).max
    with torch.autocast("cpu", torch.float16):
        loss, _ = projected_cross_entropy(hidden, weight, targets, smoothing=0.1)
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=0)


def test_parts_add_up_to_the_whole():
    hidden, weight, targets = example()
    whole = projected_cross_entropy(hidden, weight, targets, smoothing=0.1)
    parts = [projected_cross_entropy(hidden[rows], weight, targets[rows], smoothing=0.1) for rows in (slice(5), slice(5, 13))]
    torch.testing.assert_close(torch.stack(whole), torch.stack(parts[0]) + torch.stack(parts[1]))


def test_a_hopeless_word_costs_its_distance():
    hidden, weight = torch.tensor([[1000.0]], requires_grad=True), torch.tensor([[1.0], [-1.0]])
    loss, nll = projected_cross_entropy(hidden, weight, torch.tensor([1]))
    assert loss.item() == nll.item() == 2000
    loss.backward()
    assert hidden.grad.item() == 2


def test_neither_figure_needs_the_logits_afterwards():
    hidden, weight, targets = example(tokens=40)
    kept: list[int] = []
    teachers = [Projection(torch.randn(40, 5), torch.randn(11, 5), None)]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        loss, nll = projected_cross_entropy(hidden, weight, targets, smoothing=0.1, teachers=teachers, distillation=0.5)
    assert kept
    assert max(kept) <= max(hidden.numel(), weight.numel()) < hidden.size(0) * weight.size(0)
    assert loss.requires_grad
    assert not nll.requires_grad


def test_without_gradients_it_computes_none():
    hidden, weight, targets = example()
    expected = projected_cross_entropy(hidden, weight, targets, smoothing=0.1)
    with torch.no_grad():
        got = projected_cross_entropy(hidden, weight, targets, smoothing=0.1)
    assert not got[0].requires_grad
    torch.testing.assert_close(torch.stack(got), torch.stack(expected).detach())


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_a_bias_is_a_weight_of_a_hidden_one(smoothing, r_drop):
    hidden, weight, targets = example(tokens=26)
    bias = torch.randn(len(weight), requires_grad=True)
    options = {"passes": 2, "smoothing": smoothing, "r_drop": r_drop}
    loss, nll = projected_cross_entropy(hidden, weight, targets[:13], bias=bias, **options)
    ours = torch.autograd.grad(loss, (hidden, weight, bias))
    with_one, wider = torch.cat([hidden, torch.ones(26, 1)], dim=1), torch.cat([weight, bias[:, None]], dim=1)
    expected, expected_nll = projected_cross_entropy(with_one, wider, targets[:13], **options)
    torch.testing.assert_close((loss, nll), (expected, expected_nll))
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (hidden, weight, bias)))
