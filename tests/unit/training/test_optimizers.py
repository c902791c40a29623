"""Schedules by their laws, decay where it belongs, and the moving average by its formula."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from tests.support.configurations import model_config, run_config
from tests.support.models import random_model
from tests.support.paths import ROOT
from translator.config.options import OptimConfig
from translator.training.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    AdamW,
    WeightAverage,
    build_optimizers,
    learning_rate,
)


def options(**changes: object):
    return run_config(*(f"optim.{name}={value}" for name, value in changes.items())).optim


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "wsd", "constant"])
@pytest.mark.parametrize("warmup", [1, 100, 500, 900])
def test_learning_rate_warms_up_linearly_without_jumps(schedule, warmup):
    config, at_once = (options(schedule=schedule, lr=0.01, warmup_updates=updates) for updates in (warmup, 0))
    rates = [learning_rate(config, update, (update - 1) / 1000) for update in range(1, 1001)]
    if schedule != "inverse_sqrt":  # it begins where the warm-up ends
        assert rates == pytest.approx([
            learning_rate(at_once, update, (update - 1) / 1000) * min(update / warmup, 1) for update in range(1, 1001)])
    assert max(rates) <= 0.01 * (1 + 1e-9)
    assert all(b <= a for a, b in itertools.pairwise(rates[warmup - 1:]))
    assert all(abs(b - a) <= 0.03 / warmup for a, b in itertools.pairwise(rates))
    ends = {"inverse_sqrt": 0.01 * (warmup / 1000) ** 0.5, "cosine": 0.0, "linear": 0.0, "wsd": 0.0, "constant": 0.01}
    assert rates[-1] == pytest.approx(ends[schedule], abs=3e-5)
    assert rates[-1] > 0  # or the last update would be none


def test_no_warmup_starts_at_the_peak():
    assert learning_rate(options(schedule="cosine", lr=0.01, warmup_updates=0), 1, 0.0) == pytest.approx(0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weight_decay_shrinks_matrices_alone(optimizer):
    model = random_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = build_optimizers(model, options(optimizer=optimizer, weight_decay=0.5, lr=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for each in optimizers:
        each.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_muon_takes_the_layers_maps_and_adamw_the_rest():
    model = random_model(model_config(positions="relative"))
    muon, adamw = build_optimizers(model, options(optimizer="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    taken = [names[id(p)] for group in muon.param_groups for p in group["params"]]
    left = [names[id(p)] for group in adamw.param_groups for p in group["params"]]
    assert sorted(taken + left) == sorted(names.values())
    assert all(name.endswith("weight") and ("W_" in name or "inner" in name or "outer" in name) for name in taken)
    assert any("tokens" in name for name in left)
    assert any("relative" in name for name in left)
    assert [len(build_optimizers(model, options(optimizer="adamw")))] == [1]


def test_adamw_is_pytorchs():
    torch.manual_seed(5)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3, "fused": True}
    pairs = [(ours, AdamW(ours.parameters(), **options)), (theirs, torch.optim.AdamW(theirs.parameters(), **options))]
    for _ in range(5):
        x = torch.randn(4, 5)
        for layer, optimizer in pairs:
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
    assert ours.weight.equal(theirs.weight)
    assert ours.bias.equal(theirs.bias)
    before, after = (optimizer.state_dict() for _, optimizer in pairs)
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_optimizers_do_without_the_compiler():
    """It takes seconds to import."""
    program = (
        "import sys, torch\n"
        "from translator.training.optimizers import AdamW, Muon, load_state_tensors, state_tensors\n"
        "layer = torch.nn.Linear(3, 3)\n"
        "optimizers = [Muon([layer.weight], lr=0.1), AdamW([layer.bias], lr=0.1, fused=True)]\n"
        "layer(torch.ones(2, 3)).sum().backward()\n"
        "for optimizer in optimizers:\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "load_state_tensors(optimizers, state_tensors(optimizers))\n"
        "assert 'torch._dynamo' not in sys.modules")
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_weight_average_follows_its_formula():
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.9)
    expected = model.weight.item()
    for update in range(1, 200):
        with torch.no_grad():
            model.weight.fill_(update)
        average.update(model, update)
        decay = min(0.9, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * update
    assert average.weights["weight"].item() == pytest.approx(expected, rel=1e-4)


def test_inverse_square_root_law():
    config = options(schedule="inverse_sqrt", lr=0.01, warmup_updates=100)
    for update in (100, 150, 400, 10_000):
        assert learning_rate(config, update, 0.0) == pytest.approx(0.01 * (100 / update) ** 0.5)
    assert learning_rate(config, 400, 0.0) == pytest.approx(learning_rate(config, 100, 0.0) / 2)


@pytest.mark.parametrize(("schedule", "quarter", "half", "four_fifths"), [
    ("cosine", 0.853553, 0.5, 0.0954915), ("linear", 0.75, 0.5, 0.2), ("wsd", 1, 1, 0.5)])
def test_schedules_towards_an_end_follow_the_progress(schedule, quarter, half, four_fifths):
    config = options(schedule=schedule, lr=0.01, warmup_updates=10)
    assert learning_rate(config, 11, 0.25) == pytest.approx(0.01 * quarter, rel=1e-5)
    assert learning_rate(config, 500, 0.5) == pytest.approx(0.01 * half)
    assert learning_rate(config, 800, 0.8) == pytest.approx(0.01 * four_fifths, rel=1e-5)
    assert learning_rate(config, 5000, 1.2) == 0  # a limit overrun, as the last update of a minute's limit may


def test_every_parameter_is_optimised_exactly_once():
    model = random_model()
    (optimizer,) = build_optimizers(model, options(optimizer="adamw", lr=0.25, betas="[0.8,0.95]", eps=1e-6, weight_decay=0.1))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == set(model.parameters())
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.25, (0.8, 0.95), 1e-6)


def test_weight_average_of_still_weights_is_those_weights():
    model = random_model()
    average = WeightAverage(model, 0.999)
    for update in range(3):
        average.update(model, update)
    for name, p in model.named_parameters():
        torch.testing.assert_close(average.weights[name], p.detach())
        assert average.weights[name].data_ptr() != p.data_ptr()


def test_every_optimizer_and_schedule_of_the_options_exists():
    hints = get_type_hints(OptimConfig)
    assert set(get_args(hints["optimizer"])) == set(OPTIMIZERS)
    assert set(get_args(hints["schedule"])) == set(SCHEDULES)
