"""Distillation: what a student takes from its teacher, for any way of training, and with which teacher it resumes."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from tests.support.configurations import TINY, run_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import batch_of, teacher_of, updater_of
from tests.support.trainings import small_corpus, training_config
from translator.config.options import RunConfig
from translator.data.batching import Batch
from translator.inference.shortlist_learning import write_shortlist
from translator.model.transformer import Transformer
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.training.teacher import Teacher, load_teacher
from translator.training.train import train
from translator.training.trainer import Trainer, new_model
from translator.training.updater import Threads

BATCH = batch_of((7, 5), (4, 6), (6, 6))
CPU = torch.device("cpu")


@torch.no_grad()
def distance(model: Transformer, teacher: Teacher, batch: Batch) -> float:
    """The divergence of a model's distributions from the mean of the teacher's."""
    q = torch.stack([each(batch.source, batch.target_in).softmax(-1) for each in teacher.models]).mean(0)
    log_p = model.eval()(batch.source, batch.target_in).log_softmax(-1)
    return float(F.kl_div(log_p[batch.real], q[batch.real], reduction="batchmean"))


@pytest.mark.parametrize(("seeds", "options"), [((5,), ()), ((5, 6), ("train.sampled_softmax=35",))], ids=str)
def test_a_student_comes_closer_to_its_teachers(seeds, options):
    teacher = teacher_of(*seeds)
    before = {name: weight.clone() for name, weight in weights_of(teacher.models[0]).items()}
    distances = []
    for taught in (teacher, None):
        made = updater_of("optim=adamw", "train.sampled_softmax=0", "train.distillation=1", *options, teacher=taught)
        for _ in range(20):
            made.step([BATCH], 5e-3)
        distances.append(distance(made.model, teacher, BATCH))
    assert distances[0] < distances[1] / 3
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(teacher.models[0]).items())


def test_validation_reports_the_loss_without_teacher():
    taught, alone = updater_of(teacher=teacher_of(5)), updater_of()
    for made in (taught, alone):
        made.model.eval()
    assert taught.loss(BATCH) == alone.loss(BATCH)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_threads_make_the_gradient_of_the_whole(precision, several_threads):
    several_threads(2)
    gradients = []
    for threads in (2, 2, 1):
        made = updater_of("train.sampled_softmax=0", precision=precision, teacher=teacher_of(5))
        made._threads = Threads(threads)
        made._gradients([BATCH], BATCH.num_tokens)
        gradients.append([weight.grad for weight in made.model.parameters()])
    for parts, again, whole in zip(*gradients, strict=True):
        assert torch.equal(parts, again)
        torch.testing.assert_close(parts, whole, atol=1e-6 if precision is Precision.FP32 else 1e-3, rtol=0.02)


def test_a_killed_run_resumes_bit_for_bit(tokenizer, tmp_path):
    config = training_config(max_updates=6, validate_every=3)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, teacher="x"))

    def trainer(name: str, *seeds: int) -> Trainer:
        folder, corpus = RunFolder(tmp_path / name), small_corpus(tokenizer, validation=4)
        folder.create(config, (tokenizer, tokenizer), {})
        teacher = teacher_of(*seeds, vocab=len(tokenizer))
        return Trainer(config, folder, corpus, new_model(config, corpus), list, precision=Precision.FP32, teacher=teacher)

    whole, killed = trainer("whole", 5), trainer("killed", 5)
    whole.fit()
    update = killed._update

    def update_or_die() -> None:
        if killed.state.update == 5:
            raise RuntimeError("killed")  # nothing is saved on the way out
        update()

    killed._update = update_or_die  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="killed"):
        killed.fit()
    with pytest.raises(UserError, match=r"train\.teacher=x: its weights have changed"):
        trainer("killed", 6)
    resumed = trainer("killed", 5)
    assert resumed.state.update == 3
    resumed.fit()
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def student(folder: Path, *options: str) -> RunConfig:
    data = write_pairs(folder / "pairs.tsv", PAIRS[::4])
    return run_config(
        *TINY, "data=files", f"data.train={data}", f"data.cache={folder}/cache", "data.holdout=2", f"runs={folder}",
        "train.max_epochs=null", "train.max_minutes=null", "train.max_updates=2", "train.validate_every=2", "search=greedy",
        "data.augment.placeholders=0.1", *options)  # for its teacher's tokenizer


def test_a_student_takes_its_teachers_vocabulary(run_folder, tmp_path):
    teacher = shutil.copytree(run_folder, tmp_path / "teacher")
    run = train(student(tmp_path, f"train.teacher={teacher}"))
    assert (run.folder.path / "tokenizer.model").read_bytes() == (teacher / "tokenizer.model").read_bytes()
    write_shortlist(run.folder)  # for which it finds its data again
    moved = teacher.rename(tmp_path / "moved")
    assert train(student(tmp_path, f"train.teacher={moved}")).outcome == run.outcome
    with pytest.raises(UserError, match=r"train\.teacher=None: .* was started with"):
        train(student(tmp_path))
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=330: the model in .* Leave the option out"):
        train(student(tmp_path, f"train.teacher={moved}", "tokenizer.vocab_size=330"), named=["tokenizer.vocab_size"])


def test_vocabularies_must_be_one(run_folder, tokenizer, tmp_path):
    other = shutil.copytree(run_folder, tmp_path / "other")
    longest = max((p for p in tokenizer.pieces(range(len(tokenizer))) if not p.startswith("<")), key=len)
    model = (other / "tokenizer.model").read_bytes()
    (other / "SHA256SUMS").unlink()
    (other / "tokenizer.model").write_bytes(model.replace(longest.encode(), longest[:-1].encode() + b"q"))
    plain = student(tmp_path)

    def taught_by(*runs: Path) -> RunConfig:
        return dataclasses.replace(plain, train=dataclasses.replace(plain.train, teacher=tuple(map(str, runs))))

    teacher, same = load_teacher(taught_by(run_folder, run_folder), CPU, None)
    assert teacher is not None
    assert len(teacher.models) == 2
    _, another = load_teacher(taught_by(other), CPU, None)
    with pytest.raises(UserError, match=r"train\.teacher=.*: its vocabulary does not match that of .*other\. Leave init out"):
        load_teacher(taught_by(run_folder), CPU, another)
    with pytest.raises(UserError, match=r"does not match that of .*other\. Name runs"):
        load_teacher(taught_by(run_folder, other), CPU, same)


@pytest.mark.parametrize(("options", "message"), [
    (("train.teacher=/no/such/run",), r"^train\.teacher=/no/such/run: "),
    (("train.distillation=1.5",), r"^train\.distillation: must")], ids=str)
def test_mistakes_get_one_line(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr("translator.pretrained.loading.load", Mock(side_effect=UserError("not a model")))
    with pytest.raises(UserError, match=message):
        load_teacher(student(tmp_path, *options), CPU, None)
