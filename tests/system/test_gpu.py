"""What holds on a CPU holds on a GPU too. Skipped, and so not shown, where there is none."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.configurations import model_config, run_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import MODEL_VARIANTS, batch_of, random_model, updater_of
from tests.support.table_models import ids_of, search
from translator.data.batching import pad
from translator.inference.translator import Translator
from translator.model.transformer import Transformer
from translator.runtime.device import OutOfMemory, Precision, resolve_device
from translator.training.loss import projected_cross_entropy
from translator.training.optimizers import orthogonalised
from translator.training.updater import Step, Updater

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: nothing was tried on one")

GPU = torch.device("cuda")
CLOSE = {"atol": 1e-4, "rtol": 1e-3}


@pytest.fixture(scope="module", autouse=True)
def _as_scripts_use_it() -> None:
    assert resolve_device("cuda") == GPU
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def steps_of(updater: Updater, number: int = 3) -> list[Step]:
    batches = [batch_of((7, 9), (5, 3), (1, 12), (33, 30), seed=seed) for seed in range(2)]
    return [updater.step(batches, 1e-3) for _ in range(number)]


def waits_in(work: Callable[[], object]) -> int:
    """How often PyTorch knows of a wait for the GPU."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in told)


@pytest.mark.parametrize("changes", MODEL_VARIANTS)
def test_updates_are_those_of_a_cpu(changes: dict[str, Any]) -> None:
    here, there = updater_of(device=GPU, **changes), updater_of(**changes)
    for ours, theirs in zip(steps_of(here), steps_of(there), strict=True):
        assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs), rel=1e-3)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_in_half_precision_they_are_close(precision: Precision, optimizer: str) -> None:
    exact = steps_of(updater_of(f"optim={optimizer}"))
    for ours, theirs in zip(steps_of(updater_of(f"optim={optimizer}", precision=precision, device=GPU)), exact, strict=True):
        assert (ours.loss, ours.nll) == pytest.approx((theirs.loss, theirs.nll), rel=0.05)


REPLAYED = [
    (), ("train.r_drop=5",), ("optim=adamw",), ("model.positions=relative", "model.activation=swiglu"),
    ("model.positions=learned", "model.norm=post", "model.tied=none", "model.output_bias=true"),
    ("model.positions=rotary", "model.encoder_window=2", "model.decoder_window=2")]


@pytest.mark.parametrize("options", REPLAYED, ids=str)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_replayed_updates_are_those_asked_for_one_by_one(precision: Precision, options: tuple[str, ...]) -> None:
    """With dropout of its own for every update, at rates that change, from a state that is loaded in between."""
    made = []
    for graphs in ("true", "false"):
        config = run_config("optim.lr=1e-3", f"train.cuda_graphs={graphs}", "model.dropout=0.2", *options)
        torch.manual_seed(1)
        updater = Updater(Transformer(config.model, 50, 40).to(GPU), config.optim, config.train, precision=precision)
        of_shapes = [batch_of((7, 9), (5, 3), seed=1), batch_of((33, 30), (2, 2), seed=2), batch_of((700, 3), seed=3)]
        order = [*of_shapes[:2] * 4, of_shapes[2], *of_shapes * 3]  # the long one needs a longer table
        batches = [dataclasses.replace(batch, seed=number) for number, batch in enumerate(order)]
        updates = [[batch] for batch in batches] + [batches[:4]] * 2
        steps = []
        for number, of_update in enumerate(updates):
            if number == 6:
                updater.load_state({name: tensor.cpu() for name, tensor in updater.state().items()})
            steps.append(dataclasses.astuple(updater.step(of_update, 1e-3 * (1 + number % 3))))
        assert (updater._recordings is None) == (graphs == "false")
        assert updater._recordings is None or len(updater._recordings) == 5
        made.append((steps, updater.model.eval()(batches[0].source.to(GPU), batches[0].target_in.to(GPU)).detach()))
    (replayed, logits), (plain, expected) = made
    exact = precision is Precision.FP32
    for ours, theirs in zip(replayed, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4 if exact else 5e-2)
    assert (logits - expected).norm() <= (1e-3 if exact else 0.1) * expected.norm()


def test_one_shape_with_other_dropout_is_another_update() -> None:
    config = run_config("optim.lr=1e-3", "model.dropout=0.3")
    updater = Updater(random_model(model_config(dropout=0.3)).to(GPU), config.optim, config.train, precision=Precision.FP32)
    batch = batch_of((7, 9), (5, 3))
    losses = [updater.step([dataclasses.replace(batch, seed=seed)], 0.0).loss for seed in (1, 1, 1, 2, 3, 1)]
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)
    assert losses[5] == pytest.approx(losses[2], rel=1e-5)
    assert len({round(loss, 4) for loss in losses[2:5]}) == 3


def test_compiled_layers_make_the_same_updates() -> None:
    plain = steps_of(updater_of(device=GPU))
    try:
        compiled = steps_of(updater_of("train.compile=true", device=GPU))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    finally:
        torch.compiler.set_stance("default")
        torch.compiler.reset()
    for ours, theirs in zip(compiled, plain, strict=True):
        assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs), rel=1e-3)


def test_the_loss_of_two_passes_is_that_of_a_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(60, 32, generator=generator), torch.randn(40, 32, generator=generator)
    targets = torch.randint(40, (30,), generator=generator)
    results = []
    for device in (GPU, torch.device("cpu")):
        h, w = hidden.to(device).requires_grad_(), weight.to(device).requires_grad_()
        loss, nll = projected_cross_entropy(h, w, targets.to(device), passes=2, smoothing=0.1, r_drop=5.0)
        loss.backward()
        results.append([loss.detach(), nll, h.grad, w.grad])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, **CLOSE)


def test_windows_in_blocks_are_those_of_a_cpu() -> None:
    batch = batch_of((300, 290), (40, 270))
    model = random_model(model_config(encoder_window=[2, None], decoder_window=[2, None]))
    expected = model(batch.source, batch.target_in)
    found = model.to(GPU)(batch.source.to(GPU), batch.target_in.to(GPU)).cpu()
    torch.testing.assert_close(found[batch.real], expected[batch.real], **CLOSE)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_an_update_waits_for_the_gpu_once(optimizer: str) -> None:
    updater = updater_of(f"optim={optimizer}", precision=Precision.BF16, device=GPU)
    steps_of(updater, 1)
    assert waits_in(lambda: steps_of(updater, 2)) == 2


def test_a_large_vocabulary_is_never_held_for_every_token() -> None:
    """A pass over 64,000 words for each of 65,536 tokens would be 17 GB in float32."""
    hidden = torch.randn(65_536, 64, device=GPU, requires_grad=True)
    weight = torch.randn(64_000, 64, device=GPU, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    loss, _ = projected_cross_entropy(hidden, weight, torch.randint(64_000, (65_536,), device=GPU), smoothing=0.1)
    loss.backward()
    assert torch.cuda.max_memory_allocated() < 8 * 2**30


def test_orthogonalised_matrices_are_those_of_a_cpu() -> None:
    matrices = torch.randn(3, 48, 96, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(orthogonalised(matrices.to(GPU)).cpu(), orthogonalised(matrices), **CLOSE)


@pytest.mark.parametrize("changes", MODEL_VARIANTS)
def test_steps_with_a_cache_equal_the_full_pass(changes: dict[str, Any]) -> None:
    batch = batch_of((7, 9), (5, 3), (1, 12), (33, 30)).to(GPU)
    source, target = batch.source, batch.target_in
    model = random_model(model_config(**changes)).to(GPU)
    full = model(source, target)
    state = model.start(model.encode(source), source != 0)
    state.reorder(torch.zeros(len(source), 3, dtype=torch.long, device=GPU))  # three hypotheses, then one by one descent
    for t in range(target.size(1)):
        tokens = target[:, t : t + 1].expand(-1, 3)
        logits = model.output(model.decode_step(tokens, state)).unflatten(0, tokens.shape)
        torch.testing.assert_close(logits, full[:, t, None].expand_as(logits), **CLOSE)
        state.reorder(torch.randint(0, 3, tokens.shape, device=GPU))


@pytest.mark.parametrize("options", [
    (), ("search=greedy",), ("search.n_best=5",), ("search.groups=5",), ("search.coverage_penalty=0.2",), ("search.mbr=chrf",),
    ("search.keep_places=true", "search.patience=1"), ("search.no_repeat_ngram=2", "search.repetition_penalty=1.2"),
    ("search.min_length=6",), ("search=sample",), ("search.banned=['Bäume']",), ("search.required=['Äpfel']",),
    ("search.prefix='Er malt'",)])
def test_translations_are_those_of_a_cpu(options: tuple[str, ...], trained_folder: Path) -> None:
    sources = [source for source, _ in PAIRS[::5]] + ["", "houses"]
    config = run_config(*options, "search.max_length_ratio=1", "search.max_length_extra=5").search
    ours, theirs = (Translator(trained_folder, device=device).translate(sources, config) for device in ("cuda", "cpu"))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.texts == other.texts
        assert [h.score for h in mine.hypotheses] == pytest.approx([h.score for h in other.hypotheses], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_neighbours_change_little_in_half_precision(precision: Any, trained_folder: Path) -> None:
    translator = Translator(trained_folder, device="cuda", precision=precision)
    sources = [source for source, _ in PAIRS]
    together, alone = translator(sources), [translator([source])[0] for source in sources[::10]]
    assert sum(a == b for a, b in zip(together[::10], alone, strict=True)) >= 0.9 * len(alone)


def test_a_search_looks_at_the_gpu_now_and_then_alone() -> None:
    model = random_model().to(GPU)
    source = pad([[5, 6, 7, 3]] * 4).to(GPU)
    config = run_config("search.min_length=64", "search.max_length=64", "search.max_length_ratio=64").search
    assert len(ids_of(search(model, source, config))[0][0]) == 64
    assert waits_in(lambda: search(model, source, config)) < 64


def test_from_files_to_translations(script: Any, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    run = f"run={tmp_path}/gpu"
    for updates in (30, 60):  # the second goes on
        trained = script(
            "train", "data=files", f"data.train={data}", "data.holdout=20", f"data.cache={tmp_path}/cache", f"runs={tmp_path}",
            "name=gpu", "device=cuda", "precision=bf16", "tokenizer.vocab_size=320", "train.max_epochs=null",
            "train.max_minutes=null", f"train.max_updates={updates}", "train.validate_every=20", "train.average=none")
        assert trained.returncode == 0, trained.stderr.decode()
    lines = [json.loads(line) for line in (tmp_path / "gpu" / "metrics.jsonl").read_text().splitlines()]
    assert [line["train/loss"] for line in lines if "train/loss" in line][-1] < 5
    for name, options in (("translate", ["device=cuda"]), ("translate", ["device=cpu"]), ("evaluate", ["device=cuda"])):
        done = script(name, run, *options, stdin=b"She sees two houses.\n")
        assert done.returncode == 0, done.stderr.decode()


def test_a_batch_that_does_not_fit_is_told_in_one_line() -> None:
    updater, batch = updater_of(device=GPU), batch_of(*[(1000, 1000)] * 16)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(OutOfMemory, match=r"train\.batch_tokens"):
            updater.step([batch], 1e-3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
