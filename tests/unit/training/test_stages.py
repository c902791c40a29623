"""Stages of a training: each on its corpora, for as long and at the rate that its options say, resumable anywhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.support.processes import processes
from tests.support.trainings import fake_translate, read_metrics, small_corpus, training_config
from translator.config.options import RunConfig
from translator.data.cleaning import Counts
from translator.data.preparation import Corpus, report_of
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runtime.device import Precision
from translator.runtime.distributed import broadcast_from_main
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer
from translator.training.optimizers import learning_rate
from translator.training.plan import log_plan, plan_of
from translator.training.stages import stages_of
from translator.training.train import resolve_options
from translator.training.trainer import Trainer, new_model

GENERAL, CAPTIONS = 150, 34  # pairs
STAGES = ("{corpora:{general:3,captions:1},updates:5}", "{corpora:[captions],updates:3,rate:0.5}", "{corpora:[general]}")


def config_of(*stages: str, **train: object) -> RunConfig:
    return training_config(stages=f"[{','.join(stages)}]" if stages else "null", **train)


def corpus_of(tokenizer: Tokenizer) -> Corpus:
    corpus = small_corpus(tokenizer, validation=8)
    assert len(corpus.train) == GENERAL + CAPTIONS
    counts = {"train": {"general": Counts(kept=GENERAL), "captions": Counts(kept=CAPTIONS)},
              "validation": {"general": Counts(kept=5), "captions": Counts(kept=3)}, "test": {"": Counts(kept=8)}}
    return dataclasses.replace(corpus, report=report_of(counts))


def trainer_of(config: RunConfig, folder: Path, tokenizer: Tokenizer) -> Trainer:
    corpus, run = corpus_of(tokenizer), RunFolder(folder)
    broadcast_from_main(lambda: run.create(config, (tokenizer, tokenizer), {}))
    return Trainer(config, run, corpus, new_model(config, corpus), fake_translate, precision=Precision.FP32)


def watched(trainer: Trainer) -> list[tuple[int, set[str], float]]:
    """The stage, the corpora and the rate of each update, once it is trained."""
    seen, step = list[tuple[int, set[str], float]](), trainer.updater.step

    def watch(batches, rate):
        rows = trainer.cursor.source.rows(trainer.state.epoch, trainer.cursor._of_update)
        seen.append((trainer.state.stage, {"general" if row < GENERAL else "captions" for row in rows.tolist()}, rate))
        return step(batches, rate)

    trainer.updater.step = watch  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(("first", "second", "ends"), [
    ("updates:5", "updates:3", [5, 8]), ("share:0.5", "share:0.25", [6, 9]), ("epochs:1", "epochs:2", None)])
def test_stages_follow_each_other(tmp_path, tokenizer, first, second, ends):
    stages = ("{corpora:[general]," + first + "}", "{corpora:[captions],rate:0.5," + second + "}", "{}")
    trainer = trainer_of(config_of(*stages), tmp_path / "run", tokenizer)
    seen = watched(trainer)
    trainer.fit()
    if ends is None:
        epochs = [len(trainer_of(config_of("{corpora:[" + name + "]}"), tmp_path / name, tokenizer).cursor.source.plan(0))
                  for name in ("general", "captions")]
        ends = [epochs[0], epochs[0] + 2 * epochs[1]]
    assert [stage for stage, _, _ in seen] == [sum(update >= end for end in ends) for update in range(12)]
    for number, (stage, corpora, rate) in enumerate(seen):
        assert corpora <= ({"general"}, {"captions"}, {"general", "captions"})[stage]
        usual = learning_rate(trainer.config.optim, number + 1, number / 12)
        assert rate == pytest.approx(usual * (0.5 if stage == 1 else 1))


@pytest.mark.parametrize(("first", "limits"), [
    ("updates:5", {"max_updates": 12}), ("share:0.3", {"max_updates": 12}), ("epochs:2", {"max_updates": 12}),
    ("share:0.45", {"max_updates": 11}),
    ("epochs:1", {"max_updates": "null", "max_epochs": 3}), ("share:0.5", {"max_updates": "null", "max_epochs": 2})])
def test_the_plan_counts_the_updates_of_each_stage(tmp_path, tokenizer, first, limits):
    config = config_of("{corpora:[captions]," + first + "}", "{}", **limits)
    planned = plan_of(trainer_of(config, tmp_path / "planned", tokenizer))
    trainer = trainer_of(config, tmp_path / "run", tokenizer)
    seen = watched(trainer)
    trainer.fit()
    counts = [sum(stage == number for stage, _, _ in seen) for number in (0, 1)]
    assert planned.of_stages == pytest.approx(counts, abs=1 if "epochs" in first or "max_epochs" in limits else 0)
    assert planned.updates == pytest.approx(len(seen), abs=1)
    assert planned.epochs == pytest.approx(trainer.cursor.epochs, abs=0.3)
    assert plan_of(trainer).of_stages == (0, 0)


def test_the_plan_warns_of_a_stage_that_is_never_reached(tmp_path, tokenizer, capsys):
    trainer = trainer_of(config_of("{corpora:[captions],updates:12}", "{}"), tmp_path / "run", tokenizer)
    trainer.corpus.report["splits"]["train"]["target_tokens"] = 1000
    log_plan(plan_of(trainer), trainer, trainer.corpus)
    assert "warning: train.stages: stage 2 is never reached" in capsys.readouterr().err


def test_stages_that_are_over_or_too_short_are_named(tmp_path, tokenizer, capsys):
    config = config_of("{share:0.3}", "{share:0.02}", "{}", max_updates=4)
    trainer = trainer_of(config, tmp_path / "run", tokenizer)
    assert plan_of(trainer).of_stages == (2, 0, 2)
    trainer.state.update = 2
    trainer.cursor.enter_stage(0.5)
    said = capsys.readouterr().err
    assert "warning: train.stages: stage 2 has no update" in said
    assert "stage      3 of 3 from update 3" in said
    trainer.corpus.report["splits"]["train"]["target_tokens"] = 1000
    log_plan(plan_of(trainer), trainer, trainer.corpus)
    assert "stage 2    all pairs, to 32 % of the training, over\n" in capsys.readouterr().err


def test_the_plan_warns_of_a_corpus_that_no_stage_has(tmp_path, tokenizer, capsys):
    trainer = trainer_of(config_of("{corpora:[captions],share:0.5}", "{corpora:{captions:2}}"), tmp_path / "run", tokenizer)
    trainer.corpus.report["splits"]["train"]["target_tokens"] = 1000
    log_plan(plan_of(trainer), trainer, trainer.corpus)
    assert "warning: train.stages: no stage has general." in capsys.readouterr().err


def test_a_resumed_run_names_the_stage_that_changed(whole):
    changed = config_of(STAGES[0], "{corpora:[captions],updates:4}", STAGES[2])
    with pytest.raises(UserError, match=r"^train.stages=\{[^}]*'updates': 4[^}]*\}: .* started with \{[^}]*'updates': 3"):
        resolve_options(changed, whole.folder, torch.device("cpu"))


@pytest.fixture(autouse=True)
def without_maps(monkeypatch) -> None:
    monkeypatch.setattr(Tracker, "attention_map", lambda *_: None)  # half a second each, more than all the rest


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer) -> Trainer:
    trainer = trainer_of(config_of(*STAGES), tmp_path_factory.mktemp("whole"), tokenizer)
    trainer.fit()
    return trainer


@pytest.mark.parametrize("killed_at", [4, 7, 11])
def test_a_run_killed_in_any_stage_resumes_bit_for_bit(tmp_path, tokenizer, killed_at, whole):
    config = whole.config
    killed = trainer_of(config, tmp_path / "killed", tokenizer)
    update = killed._update

    def update_or_die() -> None:
        if killed.state.update == killed_at:
            raise MemoryError  # nothing is saved on the way out
        update()

    killed._update = update_or_die  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        killed.fit()
    resumed = trainer_of(config, tmp_path / "killed", tokenizer)
    seen = watched(resumed)
    assert resumed.state.update == killed_at // 4 * 4
    resumed.fit()
    assert seen[-1][0] == 2
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert read_metrics(resumed.folder) == read_metrics(whole.folder)
    assert resumed.state.validations == whole.state.validations


def train_in_process(folder: Path, tokenizer: Tokenizer) -> None:
    config = config_of(*STAGES, accumulation=6, metric="loss", batch_tokens=60)
    optim = dataclasses.replace(config.optim, optimizer="adamw", eps=1e-3)
    trainer_of(dataclasses.replace(config, optim=optim), folder, tokenizer).fit()


def test_any_number_of_processes_goes_through_the_same_stages(tmp_path, tokenizer):
    train_in_process(tmp_path / "1", tokenizer)
    expected = read_metrics(RunFolder(tmp_path / "1"))
    assert [line["train/stage"] for line in expected if "train/stage" in line] == [1, 1, 2, 2, 3, 3]
    for count in (2, 3):
        assert processes(count, train_in_process, tmp_path / str(count), tokenizer) == [0] * count
        for line, other in zip(expected, read_metrics(RunFolder(tmp_path / str(count))), strict=True):
            line, other = ({name: value for name, value in each.items() if name != "train/padding"} for each in (line, other))
            assert other == pytest.approx(line, rel=1e-3, abs=1e-5)


def test_validation_scores_each_corpus(tmp_path, tokenizer):
    trainer = trainer_of(config_of(), tmp_path / "run", tokenizer)
    trainer.validator.translate = lambda texts: [  # all of one corpus right, all of the other wrong
        target if row < 5 else "x" for row, target in enumerate(trainer.corpus.validation["target"])]
    trainer.fit()
    last = trainer.state.validations[-1]
    assert last["bleu.general"] == pytest.approx(100)
    assert last["bleu.captions"] < 1
    assert last["bleu.captions"] < last["bleu"] < last["bleu.general"]
    assert read_metrics(trainer.folder)[-1]["validation/bleu.general"] == pytest.approx(100)


def described(*stages: str, tokenizer: Tokenizer) -> Sequence[str]:
    return [str(stage) for stage in stages_of(config_of(*stages), corpus_of(tokenizer))]


def test_a_plan_names_shares_ends_and_rates(tokenizer):
    assert described(*STAGES, tokenizer=tokenizer) == [
        "general 75.0 %, captions 25.0 %, to update 5", "captions 100.0 %, to update 8, rate × 0.5", "general 100.0 %"]
    assert described("{share:0.3}", "{share:0.45,augment:{lower:0.5}}", "{}", tokenizer=tokenizer) == [
        "all pairs, to 30 % of the training", "all pairs, to 75 % of the training", "all pairs"]


def test_a_stage_has_its_own_noise(tokenizer):
    first, second = stages_of(config_of("{share:0.5}", "{augment:{lower:0.5,typos:0}}"), corpus_of(tokenizer))
    assert second.augment == dataclasses.replace(first.augment, lower=0.5, typos=0)


@pytest.mark.parametrize(("stages", "words"), [
    (["{updates:5}"], "the last stage lasts to the end"), (["{}", "{}"], "stage 1 needs updates, epochs or share"),
    (["{updates:5,share:0.5}", "{}"], "one of them"), (["{updates:5}", "{share:0.5}", "{}"], "need the same"),
    (["{share:0.5}", "{share:0.5}", "{}"], "leaves nothing"), (["{share:0.5,rate:0}", "{}"], "train.stages, rate: must"),
    (["{shares:0.5}", "{}"], "did you mean train.stages, share"), (["{corpora:[x],share:0.5}", "{}"], "x: no such corpus"),
    (["{corpora:{captoins:1},share:0.5}", "{}"], "did you mean .*captions"), (["{corpora:{general:-1}}"], "corpora: must"),
    (["{corpora:{general:1,captions:1e-9}}"], "train.stages, captions: its weight, 1e-09, gives it no pair in an epoch"),
    (["{corpora:{}}"], "corpora: must have at least 1"), (["{corpora:[general,general]}"], "names a corpus twice"),
    (["{augment:{upper:0.6,lower:0.6}}"], "train.stages, augment.upper: with title"),
    (["{augment:{lowr:1}}"], "did you mean train.stages, augment.lower"), (["3"], "expected options by name")], ids=str)
def test_mistakes_in_stages_get_one_line(stages, words, tokenizer):
    with pytest.raises(UserError, match=words):
        stages_of(config_of(*stages), corpus_of(tokenizer))


def test_stages_of_one_corpus_name_none(tokenizer):
    corpus = small_corpus(tokenizer, validation=8)
    with pytest.raises(UserError, match="needs data.corpora"):
        stages_of(config_of("{corpora:[general],share:0.5}", "{}"), corpus)
    assert [stage.mix for stage in stages_of(config_of("{share:0.5,rate:2}", "{}"), corpus)] == [None, None]


def test_the_only_corpus_may_have_a_weight_and_stages(tokenizer):
    corpus = small_corpus(tokenizer, validation=8)
    cut = {"": Counts(kept=8)}
    counts = {"train": {"only": Counts(kept=len(corpus.train))}, "validation": cut, "test": cut}
    corpus = dataclasses.replace(corpus, report=report_of(counts))
    config = config_of("{corpora:[only],share:0.5}", "{}")
    data = dataclasses.replace(config.data, path=None, train=None, corpora=({"name": "only", "train": "x.tsv", "weight": 3},))
    first, second = stages_of(dataclasses.replace(config, data=data), corpus)
    assert str(first) == "only 100.0 %, to 50 % of the training"
    assert str(second) == "only 100.0 %"


def test_options_of_stages_are_read_back(tmp_path, tokenizer):
    config = config_of(*STAGES)
    run = RunFolder(tmp_path / "run")
    run.create(config, (tokenizer, tokenizer), {})
    assert run.load_config().train.stages == config.train.stages
    assert json.loads(json.dumps(dataclasses.asdict(config.train.stages[0])))["corpora"] == {"general": 3, "captions": 1}


def test_the_score_of_one_corpus_chooses(tmp_path, tokenizer):
    trainer = trainer_of(config_of(metric="bleu.captions"), tmp_path / "run", tokenizer)
    right = {4: range(3), 8: range(5, 8), 12: range(5)}  # what is translated well at each validation
    trainer.validator.translate = lambda texts: [
        target if row in right[trainer.state.update] else "x" for row, target in enumerate(trainer.corpus.validation["target"])]
    outcome = trainer.fit()
    assert "8" in outcome.kept
    assert outcome.metrics["bleu.captions"] == pytest.approx(100)
    with pytest.raises(UserError, match=r"train\.metric=bleu\.captoins: .* Choose general, captions, or train.metric=bleu"):
        trainer_of(config_of(metric="bleu.captoins"), tmp_path / "other", tokenizer)
