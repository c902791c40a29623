"""The loop's contracts: exact accumulation, exact resuming, early stopping, the choice of weights, NaN."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from datasets import concatenate_datasets
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from torch import nn

from tests.support.commands import assert_user_error
from tests.support.configurations import TINY, model_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.trainings import read_metrics, small_corpus, tokenized_rows, training_config
from translator.config.augmentation import AugmentConfig
from translator.config.options import RunConfig
from translator.data.batching import Batch, collate
from translator.model.weights import load_into, weights_of
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runs.training_state import Divergence
from translator.runtime.atomic_files import load_tensors, save_tensors
from translator.runtime.device import OutOfMemory, Precision
from translator.runtime.errors import Interrupted, UserError
from translator.text.tokenizer import Tokenizer
from translator.training.optimizers import state_tensors
from translator.training.plan import fitting_batch_tokens, time_update, validation_interval
from translator.training.trainer import Trainer, new_model
from translator.training.updater import Updater
from translator.training.validation import to_average

Setup = Callable[..., Trainer]


@pytest.fixture
def setup(tmp_path: Path, tokenizer: Tokenizer, monkeypatch) -> Setup:
    monkeypatch.setattr(Tracker, "attention_map", lambda *_: None)  # half a second each, more than all the rest

    def make(config: RunConfig, name: str = "run", precision: Precision = Precision.FP32) -> Trainer:
        corpus = small_corpus(tokenizer, validation=8)
        folder = RunFolder(tmp_path / name)
        folder.create(config, (tokenizer, tokenizer), {})
        return Trainer(config, folder, corpus, new_model(config, corpus), list, precision=precision)

    return make


def final(trainer: Trainer) -> dict[str, torch.Tensor]:
    weights, training, _ = trainer.folder.checkpoints.load(trainer.state.update)
    return weights | {f"training.{name}": tensor for name, tensor in training.items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("extra", "stop_at", "threads", "precision"), [
    *(({"optimizer": "adamw"}, stop_at, 1, Precision.FP32) for stop_at in (3, 8, 9)),
    *(({"optimizer": "muon", "ema_decay": 0.9}, stop_at, 1, Precision.FP32) for stop_at in (3, 8, 9)),
    *(({"optimizer": "muon"}, 9, 2, precision) for precision in (Precision.FP32, Precision.BF16))])
def test_a_run_killed_and_resumed_is_the_run_never_interrupted(
    setup, extra, stop_at, threads, precision, several_threads
):
    several_threads(threads)
    config = training_config(accumulation=2, guided_alignment=0.5 if threads > 1 else 0)
    config = dataclasses.replace(
        config, optim=dataclasses.replace(config.optim, **extra),
        tokenizer=dataclasses.replace(config.tokenizer, sampling=0.2, placeholders=0),
        data=dataclasses.replace(config.data, augment=AugmentConfig(lower=0.3, no_stop=0.3, typos=0.3, numbers=0.1)))
    whole = setup(config, "whole", precision)
    whole.fit()
    stopped = setup(config, "stopped", precision)
    step = stopped._update

    def update_then_interrupt() -> None:
        if stopped.state.update == stop_at - 1:
            os.kill(os.getpid(), signal.SIGINT)
        step()

    stopped._update = update_then_interrupt  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        stopped.fit()
    assert stopped.folder.checkpoints.resumable()[0] in (stop_at - 1, stop_at)
    resumed = setup(config, "stopped", precision)
    assert resumed.state.update in (stop_at - 1, stop_at)
    resumed.fit()
    assert_same(final(resumed), final(whole))
    assert read_metrics(resumed.folder) == read_metrics(whole.folder)
    assert resumed.state.validations == whole.state.validations
    steps = [  # sorted: TensorBoard reads files of the same second by name, 10 before 9
        sorted(event.step for event in EventAccumulator(str(t.folder.tensorboard)).Reload().Scalars("validation/loss"))
        for t in (resumed, whole)]
    assert steps == [[4, 8, 12]] * 2


def test_a_run_killed_outright_goes_on_from_its_last_checkpoint(setup):
    whole = setup(training_config(), "whole")
    whole.fit()
    killed = setup(training_config(), "killed")
    step = killed._update

    def update_then_die() -> None:
        if killed.state.update == 10:
            raise MemoryError  # nothing is saved on the way out
        step()

    killed._update = update_then_die  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        killed.fit()
    resumed = setup(training_config(), "killed")
    assert resumed.state.update == 8
    resumed.fit()
    assert_same(final(resumed), final(whole))
    assert read_metrics(resumed.folder) == read_metrics(whole.folder)


def test_the_best_of_each_metric_survives_a_kill(setup, monkeypatch):
    def training(name: str) -> Trainer:
        trainer = setup(training_config(keep="[chrf,loss]"), name)
        # The first validation has the best chrF, the last one the best loss.
        trainer.validator.translate = lambda texts: list(texts) if trainer.state.update == 4 else ["x"] * len(texts)
        return trainer

    whole = training("whole")
    whole.fit()
    monkeypatch.setattr(RunFolder, "save_best", once_then_die(RunFolder.save_best, at=3))
    with pytest.raises(MemoryError):  # the best of a metric is written, the validation not recorded yet
        training("killed").fit()
    resumed = training("killed")
    assert resumed.state.update == 8
    resumed.fit()
    validations = {validation.pop("update"): validation for validation in map(dict, whole.state.validations)}
    for metric, update in (("chrf", 4), ("loss", 12)):
        one, other = whole.folder.best(metric), resumed.folder.best(metric)
        assert one.load_outcome() == other.load_outcome()
        assert one.load_outcome()["metrics"] == validations[update]
        assert_same(one.load_weights(), other.load_weights())
        assert one.load_config() == whole.folder.load_config()
    assert_same(whole.folder.best("loss").load_weights(), whole.checkpoints.load(12)[0])


def once_then_die(function: Callable[..., None], *, at: int) -> Callable[..., None]:
    """Call a function, and after call number `at` raise MemoryError once, as if killed."""
    calls = iter(range(1, 1000))

    def dying(*args: object) -> None:
        function(*args)
        if next(calls) == at:
            raise MemoryError

    return dying


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_timing_an_update_leaves_no_trace(setup, optimizer):
    config = training_config()
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, optimizer=optimizer))
    timed, untimed = setup(config, "timed"), setup(config, "untimed")
    assert time_update(timed) > 0
    for trainer in (timed, untimed):
        trainer.fit()
    assert_same(final(timed), final(untimed))
    again = setup(dataclasses.replace(config, train=dataclasses.replace(config.train, max_updates=20)), "timed")
    time_update(again)
    assert_same(
        weights_of(again.model) | state_tensors(again.updater.optimizers),
        weights_of(timed.model) | state_tensors(timed.updater.optimizers))


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(setup, capsys):
    trainer = setup(training_config())
    trainer.fit()
    newest = trainer.folder.checkpoints.path / f"{12:08d}" / "training.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    again = setup(training_config())
    assert again.state.update == 8
    assert "damaged" in capsys.readouterr().err
    again.fit()  # and saves the same update anew, beside the damaged one
    assert setup(training_config()).state.update == 12
    assert (again.folder.checkpoints.path / "damaged-00000012").is_dir()
    for path in trainer.folder.checkpoints.path.rglob("*.safetensors"):
        path.write_bytes(b"junk")
    with pytest.raises(UserError, match="no readable checkpoint"):
        setup(training_config())


def test_a_training_that_lost_its_checkpoints_is_not_begun_anew(setup):
    trainer = setup(training_config())
    trainer.fit()
    shutil.rmtree(trainer.folder.checkpoints.path)
    with pytest.raises(UserError, match="no readable checkpoint"):
        setup(training_config())


def test_accumulated_batches_weigh_what_they_hold(setup):
    """Four batches of 200 tokens make the gradient that the same sentences make as one batch."""
    trainer = setup(dataclasses.replace(training_config(accumulation=4), model=model_config()))
    trainer.model.eval()
    batches = trainer.cursor.next_batches()
    tokens = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (trainer.updater.loss(batch)[0] / tokens).backward()
    accumulated = [p.grad.clone() for p in trainer.model.parameters()]
    trainer.model.zero_grad()
    sources = [[i for i in row if i] for batch in batches for row in batch.source.tolist()]
    targets = [[i for i in row if i] for batch in batches for row in batch.target_out.tolist()]
    (trainer.updater.loss(collate(sources, targets))[0] / tokens).backward()
    for p, grad in zip(trainer.model.parameters(), accumulated, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-6, rtol=1e-4)


def test_training_learns_and_keeps_the_best_weights(setup):
    trainer = setup(training_config(max_updates=60, validate_every=20, metric="loss"))
    outcome = trainer.fit()
    losses = [v["loss"] for v in trainer.state.validations]
    assert losses[-1] < 0.9 * losses[0]
    best = min(trainer.state.validations, key=lambda v: v["loss"])
    assert outcome.metrics["loss"] == best["loss"]
    assert f"{best['update']}" in outcome.kept
    assert trainer.fit() == outcome  # a finished training has nothing left to do


@pytest.mark.parametrize(("average", "expected"), [("last", [12, 16, 20]), ("best", None)])
def test_averages_are_of_the_checkpoints_asked_for(setup, average, expected):
    trainer = setup(training_config(max_updates=20, average=average, average_count=3, metric="loss"))
    outcome = trainer.fit()
    ranked = [v["update"] for v in sorted(trainer.state.validations, key=lambda v: v["loss"])]
    averaged = to_average(trainer.state.validations, trainer.config.train)
    assert sorted(averaged) == sorted(expected or ranked[:3])
    model = load_tensors(trainer.folder.model_file)
    mean = trainer.folder.checkpoints.average(averaged)
    kept_average = all(torch.allclose(model[name], mean[name]) for name in model)
    assert kept_average == outcome.kept.startswith("average")


def test_patience_stops_a_run_that_no_longer_improves(setup):
    config = training_config(max_updates=400, validate_every=2, patience=3, metric="loss")
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, lr=1e-12))
    outcome = setup(config).fit()
    assert "in 3 validations" in outcome.reason
    assert outcome.update < 400


def test_limits_in_epochs_and_minutes(setup):
    trainer = setup(training_config(max_updates="null", max_epochs=2))
    trainer.fit()
    assert trainer.cursor.epochs == 2
    timed = setup(training_config(max_updates="null", max_minutes=0.02), "timed")
    timed.fit()
    assert 1.2 <= timed.state.seconds < 10
    assert timed.state.validations[-1]["update"] == timed.state.update


def test_validation_that_uses_up_the_time_ends_training(setup, monkeypatch):
    trainer = setup(training_config(max_updates="null", max_minutes=1))
    measure = trainer.validator.measure

    def for_a_minute():
        trainer._started -= 60
        return measure()

    monkeypatch.setattr(trainer.validator, "measure", for_a_minute)
    trainer.fit()
    assert (trainer.state.update, [validation["update"] for validation in trainer.state.validations]) == (4, [4])


def test_a_run_may_be_given_more_updates(setup):
    setup(training_config(max_updates=8)).fit()
    assert setup(training_config(max_updates=12)).fit().update == 12


def test_earlier_weights_stay_until_better_ones_exist(setup):
    folder = setup(training_config(max_updates=4, metric="loss"), "run").folder
    setup(training_config(max_updates=4, metric="loss")).fit()
    outcome = folder.load_outcome()
    folder.save_outcome(outcome | {"kept": "an average", "metrics": outcome["metrics"] | {"loss": 0.5}})
    left = load_tensors(folder.model_file)
    longer = setup(training_config(max_updates=12, metric="loss"))
    chosen = longer.fit()
    assert (chosen.update, chosen.kept, chosen.metrics["loss"]) == (12, "an average", 0.5)
    assert_same(load_tensors(folder.model_file), left)


@pytest.mark.parametrize("was_best", [True, False])
def test_training_ends_without_an_unreadable_old_checkpoint(setup, capsys, was_best):
    config = training_config(max_updates=16, average="best", average_count=3, metric="loss")
    trainer = setup(config)
    trainer.fit()
    folder = trainer.folder
    folder.outcome_file.unlink()
    left = folder.checkpoints.average([8])
    save_tensors(folder.model_file, left)
    (folder.checkpoints.path / "00000008" / "weights.safetensors").write_bytes(b"x")
    again = setup(config)
    if was_best:
        next(v for v in again.state.validations if v["update"] == 8)["loss"] = 0.1
    outcome = again.fit()
    assert "going on without it" in capsys.readouterr().err
    if was_best:  # the weights that its validation has left are all there is
        assert outcome.kept == "checkpoint of update 8"
        assert_same(load_tensors(folder.model_file), left)
    else:
        assert "8" not in outcome.kept.replace(",", "").split()


def test_resumed_run_is_not_marked_as_ended(setup):
    setup(training_config(max_updates=4, metric="loss")).fit()
    longer = setup(training_config(max_updates=12, metric="loss"))
    step = longer._update

    def update_then_die() -> None:
        if longer.state.update == 10:
            raise MemoryError
        step()

    longer._update = update_then_die  # type: ignore[method-assign]
    assert longer.folder.load_outcome() is not None
    with pytest.raises(MemoryError):
        longer.fit()
    assert longer.folder.load_outcome() is None


@pytest.mark.parametrize("place", ["before", "after"])
def test_signal_during_validation_saves_trained_weights(setup, place, monkeypatch):
    """It comes just before or after a load into the model: of the moving average, or back."""
    config = training_config()
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, ema_decay=0.9))
    whole = setup(config, "whole")
    whole.fit()
    for number in range(4):
        name = f"stopped-{number}"
        stopped = setup(config, name)
        loads = iter(range(100))

        def load(*arguments: object, at: int = number, loads: object = loads) -> None:
            mine = next(loads) == at  # type: ignore[call-overload]
            if mine and place == "before":
                os.kill(os.getpid(), signal.SIGINT)
            load_into(*arguments)  # type: ignore[arg-type]
            if mine and place == "after":
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr("translator.training.trainer.load_into", load)
            with pytest.raises(Interrupted):
                stopped.fit()
        resumed = setup(config, name)
        resumed.fit()
        assert_same(final(resumed), final(whole))
        assert read_metrics(resumed.folder) == read_metrics(whole.folder)


def test_kept_model_is_the_one_named(setup):
    trainer = setup(training_config(metric="loss"))
    trainer.fit()
    trainer.folder.outcome_file.unlink()
    save_tensors(trainer.folder.model_file, weights_of(new_model(trainer.config, trainer.corpus)))
    kept = setup(training_config(metric="loss")).fit().kept
    assert_same(load_tensors(trainer.folder.model_file), trainer.folder.checkpoints.average([int(kept.rpartition(" ")[2])]))


def test_a_gradient_that_is_not_finite_stops_the_run_by_name(setup):
    trainer = setup(training_config())
    with torch.no_grad():
        trainer.model.encoder[0].feed_forward.inner.weight[0, 0] = torch.nan
    with pytest.raises(UserError, match="update 1: the gradient is nan") as caught:
        trainer.fit()
    numbers = sorted(row + 1 for row in trainer.cursor.source.plan(0)[0])
    assert f"on sentences {', '.join(map(str, numbers[:5]))} and {len(numbers) - 5} more" in str(caught.value)
    assert "checkpoint is that of update 0" in str(caught.value)


def test_previous_checkpoint_finds_all_its_weights(setup):
    trainer = setup(training_config(average="last", average_count=2))
    trainer.fit()
    newest = trainer.folder.checkpoints.path / f"{12:08d}" / "training.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    again = setup(training_config(average="last", average_count=2, max_updates=8))
    assert again.state.update == 8
    assert again.fit().update == 8


def test_validation_scores_sentences_longer_than_a_batch(setup, tokenizer):
    trainer = setup(training_config(max_updates=4))
    long = " ".join(source for source, _ in PAIRS[:30])
    corpus = dataclasses.replace(trainer.corpus, validation=tokenized_rows(tokenizer, [(long, long), *PAIRS[:3]]))
    assert max(corpus.validation["source_length"]) > trainer.config.train.max_tokens
    again = Trainer(trainer.config, trainer.folder, corpus, trainer.model, list, precision=Precision.FP32)
    assert again.fit().update == 4

    learned = dataclasses.replace(trainer.config, model=model_config(positions="learned", max_positions=64))
    with pytest.raises(UserError, match=r"data\.validation.*max_positions=64"):
        Trainer(learned, trainer.folder, corpus, new_model(learned, corpus), list, precision=Precision.FP32)


def test_fp16_counts_overflows_and_resumes_with_its_scale(setup):
    config = training_config(log_every=1)
    whole = setup(config, "whole", Precision.FP16)
    whole.updater.scaler.load_state_dict(whole.updater.scaler.state_dict() | {"scale": 2.0**27})
    time_update(whole)  # overflows, and leaves no trace
    assert whole.updater.scaler.get_scale() == 2.0**27
    whole.fit()
    assert 0 < whole.state.skipped < 12
    measured = [line["update"] for line in read_metrics(whole.folder) if "train/loss" in line]
    assert len(measured) == 12 - whole.state.skipped  # what was skipped is no part of a mean
    assert [line["train/skipped"] for line in read_metrics(whole.folder) if "train/skipped" in line][-1] == whole.state.skipped
    part = dataclasses.replace(config, train=dataclasses.replace(config.train, max_updates=6))
    first = setup(part, "parts", Precision.FP16)
    first.updater.scaler.load_state_dict(first.updater.scaler.state_dict() | {"scale": 2.0**27})
    first.config = config  # so that its schedule is the whole's
    first._out_of_budget = lambda: first.state.update >= 6  # type: ignore[method-assign]
    first.fit()
    second = setup(config, "parts", Precision.FP16)
    assert second.updater.scaler.get_scale() == first.updater.scaler.get_scale() < 2.0**27
    second.fit()
    assert second.state.skipped == whole.state.skipped


def test_a_gradient_that_is_never_finite_ends_fp16_too(setup):
    trainer = setup(training_config(max_updates=100), "run", Precision.FP16)
    with torch.no_grad():
        trainer.model.encoder[0].feed_forward.inner.weight[0, 0] = torch.nan
    with pytest.raises(UserError, match="the gradient is nan"):
        trainer.fit()


def test_memory_that_does_not_suffice_is_told_with_what_to_lower(setup, monkeypatch):
    trainer = setup(training_config())
    monkeypatch.setattr(trainer.updater, "_inputs", lambda batch: torch.empty(2**46, dtype=torch.uint8))
    with pytest.raises(UserError, match=r"out of memory: a batch has \d+ target tokens.*lower train\.batch_tokens=200"):
        trainer.fit()


def test_a_diverging_loss_is_told_once_each_time():
    watch = Divergence()
    losses = [5 - 0.1 * n for n in range(30)] + [9.0] * 60 + [2.0] * 30 + [2.2, 1.9] * 20 + [30.0, 2.0] * 30 + [9.0] * 30
    told = [number for number, loss in enumerate(losses) if watch.warning(loss)]
    assert told == [30 + 19, 30 + 60 + 30 + 40 + 60 + 19]


def test_the_batch_that_fits_is_found_without_touching_the_model(setup, monkeypatch):
    config = training_config()
    trainer = setup(config)
    corpus, model = trainer.corpus, new_model(config, trainer.corpus)
    before = {name: weight.clone() for name, weight in weights_of(model).items()}
    repeated = dataclasses.replace(corpus, train=concatenate_datasets([corpus.train] * 100))
    tokens = fitting_batch_tokens(config, repeated, model)
    assert tokens == 2 ** int(math.log2(tokens))
    assert 512 <= tokens < sum(repeated.train["target_length"]) / 50  # an epoch keeps its batches
    assert_same(weights_of(model), before)
    step = Updater.step

    def limited(self: Updater, batches: list[Batch], *rest: object, **options: object) -> object:
        if max(batch.target_out.numel() for batch in batches) > 600:
            raise OutOfMemory("no room")
        return step(self, batches, *rest, **options)

    monkeypatch.setattr(Updater, "step", limited)
    assert fitting_batch_tokens(config, repeated, model) == 512


def test_curves_samples_and_attention_maps_reach_tensorboard(setup, monkeypatch):
    trainer = setup(training_config())
    monkeypatch.undo()  # maps are drawn here
    trainer.fit()
    events = EventAccumulator(str(trainer.folder.tensorboard), size_guidance={"images": 0, "tensors": 0}).Reload()
    scalars = set(events.Tags()["scalars"])
    assert {"train/loss", "train/perplexity", "train/learning_rate", "train/gradient_norm", "train/tokens_per_second",
            "train/padding", "validation/bleu", "validation/loss", "validation/perplexity"} <= scalars
    assert [event.step for event in events.Images("validation/attention")] == [4, 8, 12]
    sample = events.Tensors("validation/samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert PAIRS[0][0] in sample
    assert PAIRS[0][1] in sample
    assert scalars >= {"final/bleu", "final/loss"}
    assert next(iter(events.PluginTagToContent("custom_scalars"))) == "custom_scalars__config__"
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")


HOSTILE_CELLS = [
    "![x](http://evil.example/x.png)", "<img src=http://evil.example/x.png>", "[a](http://evil.example)", "![x][1]", "a | b",
    "`| c`", "\\| d", "*e* _f_ ~~g~~", "&#124; &lt;b&gt;", "h\n\n| i |\u2028j", "```", "<http://evil.example>", "    k", "# l",
    "- m", "---"]


@given(st.lists(st.sampled_from(HOSTILE_CELLS) | st.text("a|\\`*_[]()!<>&#;:~-+.\n\t ", max_size=12), min_size=3, max_size=3))
def test_samples_are_shown_to_the_letter(cells):
    written = []
    tracker = Tracker.__new__(Tracker)
    tracker.metrics_file, tracker._feed = Path("metrics.jsonl"), None
    tracker._writer = SimpleNamespace(add_text=lambda name, text, update: written.append(text))
    tracker.table(1, "x", [("source", "translation", "reference"), cells])
    root = ElementTree.fromstring(f"<all>{markdown_to_safe_html(written[0])}</all>")
    assert {element.tag for element in root.iter()} <= {"all", "table", "thead", "tbody", "tr", "th", "td"}
    shown = ["".join(cell.itertext()).split() for cell in root.iter("td")]
    assert shown == [cell.split() for cell in cells]


def test_printed_throughput_is_real_tokens_over_time(setup, monkeypatch):
    trainer = setup(training_config(log_every=1))
    clock = iter(range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))  # every update then takes one second
    trainer.fit()
    lines = [json.loads(line) for line in trainer.folder.metrics_file.read_text().splitlines()]
    lines = [line for line in lines if "train/loss" in line]
    assert len(lines) == 12
    totals = list(accumulate(line["train/tokens_per_second"] for line in lines))
    assert totals == [line["train/tokens"] for line in lines]
    assert totals[-1] == trainer.state.tokens


@pytest.mark.torture
def test_compiled_layers_train_alike_and_a_kind_is_compiled_once(setup, monkeypatch):
    compile_layer = nn.Module.compile
    traced: list[object] = []

    def backend(graph: nn.Module, _: object) -> nn.Module:  # that compiles nothing, which takes a CPU minutes
        traced.append(graph)
        return graph

    monkeypatch.setattr(nn.Module, "compile", lambda layer, **options: compile_layer(layer, backend=backend, **options))
    deep = dataclasses.replace(training_config(), model=model_config(encoder_layers=4, decoder_layers=4))
    plain = setup(deep, "plain").fit()
    try:
        compiled = setup(dataclasses.replace(deep, train=dataclasses.replace(deep.train, compile=True)), "compiled").fit()
        assert compiled.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-4)
        assert 2 <= len(traced) < 8
    finally:
        torch.compiler.set_stance("default")
        torch.compiler.reset()


def test_measurements_that_were_removed_are_told(tmp_path: Path, capsys):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"update": 1}\n')
    for size, told in ((14, False), (7, False), (15, True)):
        Tracker(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", recorded={"metrics.jsonl": size}).close()
        assert ("metrics.jsonl: was cut" in capsys.readouterr().err) is told


def test_log_line_holds_means_since_the_previous_line(setup, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    each, fourth = (setup(training_config(log_every=every), str(every)) for every in (1, 4))
    each.fit()
    fourth.fit()
    every_update, every_fourth = (
        [line for line in map(json.loads, trainer.folder.metrics_file.read_text().splitlines()) if "train/loss" in line]
        for trainer in (each, fourth))
    assert [line["update"] for line in every_fourth] == [4, 8, 12]
    for number, line in enumerate(every_fourth):
        four = every_update[4 * number : 4 * number + 4]
        tokens = [update["train/tokens_per_second"] for update in four]  # of one second
        assert line["train/tokens_per_second"] == sum(tokens) / 4
        for name, mean in (
                ("train/loss", sum(n * update["train/loss"] for n, update in zip(tokens, four, strict=True)) / sum(tokens)),
                ("train/padding", sum(update["train/padding"] for update in four) / 4)):
            assert line[name] == pytest.approx(mean, rel=1e-9)
        assert line["train/gradient_norm"] == four[-1]["train/gradient_norm"]


@pytest.mark.parametrize(("updates", "minutes", "expected"), [
    (2000, 10, 500), (1000, 10, 250), (300, 3, 75), (3000, 60, 150), (6000, None, 300), (10**5, None, 500), (10**5, 600, 500),
    (41, None, 3), (1, None, 1), (0, 1, 1)])
def test_validations_follow_the_plan(updates, minutes, expected):
    assert validation_interval(updates, minutes) == expected


def test_a_planned_interval_stays_with_its_run(script, tmp_path):
    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    base = [
        *TINY, "data=files", f"data.train={pairs}", f"data.cache={tmp_path}/cache", "data.holdout=8", f"runs={tmp_path}",
        "name=run", "train.max_epochs=null", "train.max_minutes=null", "train.average=none",
        "optim.lr=1e-30", "train.patience=1"]  # the second validation, no better, ends it
    folder = RunFolder(tmp_path / "run")
    for updates in (40, 400):  # the second goes on, and has a plan of its own
        result = script("train", *base, f"train.max_updates={updates}")
        assert result.returncode == 0, result.stderr.decode()
        assert folder.load_config().train.validate_every == 2
        assert b"validation every 2 updates" in result.stderr
    recorded = map(json.loads, folder.metrics_file.read_text().splitlines())
    assert [point["update"] for point in recorded if "validation/loss" in point] == [2, 4]
    refused = script("train", *base, "train.max_updates=40", "train.validate_every=5")
    assert_user_error(refused, "train.validate_every=5", "started with 2")


def test_many_accumulated_batches_are_not_all_timed(setup, monkeypatch):
    trainer = setup(training_config(accumulation=10_000))
    sizes, step = [], trainer.updater.step
    monkeypatch.setattr(trainer.updater, "step", lambda batches, rate: sizes.append(len(batches)) or step(batches, rate))
    assert time_update(trainer) > 0
    assert set(sizes) == {4} != {trainer.cursor.updates_per_epoch(0)}
