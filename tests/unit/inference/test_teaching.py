"""Runs translate training data resumably, once, and by the same search as on the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, data_config, pairs_of, write_pairs
from translator import Translator
from translator.config.building import read_yaml, to_yaml
from translator.config.data import DataConfig
from translator.config.languages import BACK_TRANSLATED
from translator.data.preparation import clean_splits, load_rows
from translator.inference import teaching
from translator.inference.files import Job
from translator.inference.teaching import training_splits
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.text.tokenizer import UNK_ID


def config_of(folder: Path, **changes: object) -> DataConfig:
    return data_config(folder / "cache", train=str(write_pairs(folder / "pairs.tsv", PAIRS)), **changes)


def train_of(config: DataConfig) -> list[tuple[str, str]]:
    return pairs_of(load_rows(training_splits(config, "cpu"), "train"))


def test_the_targets_are_the_teacher_s_at_beam_5(tmp_path, trained_folder, run_folder):
    config = config_of(tmp_path, teacher=str(trained_folder))
    sources = [source for source, _ in pairs_of(load_rows(clean_splits(config), "train"))]
    teacher = Translator(trained_folder, device="cpu")
    expected = list(zip(sources, teacher(sources, teacher.search.plain(5)), strict=True))
    assert set(train_of(config)) <= set(expected)
    assert len(train_of(config)) > 0.9 * len(expected)  # cleaning drops the worst
    plain = dataclasses.replace(config, teacher=None)
    assert training_splits(plain, "cpu") == clean_splits(plain)
    both = dataclasses.replace(config, teacher=(str(trained_folder), str(run_folder)), train=str(
        write_pairs(tmp_path / "few.tsv", PAIRS[:30])), holdout=2)
    assert train_of(both)


def test_a_killed_start_resumes_to_the_same_pairs(tmp_path, trained_folder, monkeypatch, capsys):
    monkeypatch.setattr(teaching, "CHUNK", 32)
    whole = train_of(config_of(tmp_path, teacher=str(trained_folder), workers=1))
    (tmp_path / "again").mkdir()
    config = config_of(tmp_path / "again", teacher=str(trained_folder), workers=1)
    translated, translate = list[list](), Job.translate

    def killed_in_the_third(job: Job, translator: Translator, requests: list) -> list:
        if len(translated) == 2:
            raise KeyboardInterrupt
        translated.append(requests)
        return translate(job, translator, requests)

    monkeypatch.setattr(Job, "translate", killed_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        train_of(config)
    [partial] = (tmp_path / "again" / "cache").glob("*.partial")
    with partial.open("a") as file:
        file.write('"cut of')  # as a kill may leave it
    monkeypatch.setattr(Job, "translate", lambda *of: translated.append(of[2]) or translate(*of))
    assert train_of(config) == whole
    assert [len(requests) for requests in translated] == [32] * 5 + [len(PAIRS) - 10 - 160]
    assert "64 are there already" in capsys.readouterr().err
    monkeypatch.setattr(teaching, "ready", None)
    assert train_of(config) == whole  # from the cache
    assert train_of(dataclasses.replace(config, taught="both"))  # by the same translations
    assert not list((tmp_path / "again" / "cache").glob("*jsonl*"))


def test_a_run_of_other_languages_or_without_weights_is_refused(tmp_path, trained_folder):
    (tmp_path / "more.de").write_text("Er singt.\n")
    config = config_of(tmp_path, monolingual=str(tmp_path / "more.de"), reverse=str(trained_folder))
    with pytest.raises(UserError, match=r"data.reverse=.*: translates en to de, not de to en. Name another run"):
        training_splits(config, "cpu")
    untrained = RunFolder(tmp_path / "untrained")
    untrained.path.mkdir()
    untrained.config_file.write_bytes(RunFolder(trained_folder).config_file.read_bytes())
    with pytest.raises(UserError, match=r"data.teacher=.*: has no model.safetensors. Train it first"):
        training_splits(config_of(tmp_path, teacher=str(untrained.path)), "cpu")


@pytest.fixture
def teacher_of_files(tmp_path, trained_folder) -> RunFolder:
    """A copy of a trained run that says it was trained on files."""
    folder, original = RunFolder(tmp_path / "teacher"), RunFolder(trained_folder)
    folder.path.mkdir()
    for file in original.path.iterdir():
        if file.is_file():
            (folder.path / file.name).write_bytes(file.read_bytes())
    config = original.load_config()
    data = config_of(tmp_path, holdout=6, augment={"placeholders": 0.1})
    folder.config_file.write_text(to_yaml(dataclasses.replace(config, data=data)))
    return folder


def test_a_student_is_taught_by_one_command(script, tmp_path, teacher_of_files, reverse_folder):
    (tmp_path / "more.de").write_text("".join(f"{target[:-1]} heute.\n" for _, target in PAIRS[:60]))
    options = [
        f"data.teacher={teacher_of_files.path}", *(option for option in TINY if "vocab" not in option), f"runs={tmp_path}",
        f"data.cache={tmp_path}/cache", f"data.monolingual={tmp_path}/more.de", f"data.reverse={reverse_folder}",
        "data.monolingual_share=0.2", "train.max_updates=2", "train.validate_every=2", "train.max_epochs=null",
        "train.max_minutes=null", "train.average=none", "search=greedy"]
    unnamed = script("teach", *options)
    assert b"error: name: is missing. Name the student: python " in unnamed.stderr
    assert b'/scripts/teach.py data.teacher="..." name="...".' in unnamed.stderr
    result = script("teach", *options, "name=student")
    assert result.returncode == 0, result.stderr.decode()
    student = RunFolder(tmp_path / "student")
    data = read_yaml(student.config_file)["data"]
    assert (data["train"], data["holdout"], data["teacher"]) == (f"{tmp_path}/pairs.tsv", 6, str(teacher_of_files.path))
    note = student.load_report()["splits"]["train"]["note"]
    assert f"targets by {teacher_of_files.path}" in note
    assert f"sources by {reverse_folder}" in note
    source, _ = student.load_tokenizers()
    assert source.ids_of([BACK_TRANSLATED]) != [UNK_ID]
    translated = script("translate", f"run={student.path}", "device=cpu", stdin=b"She sees two houses.\nHe paints.\n")
    assert translated.returncode == 0, translated.stderr.decode()
    assert translated.stdout.count(b"\n") == 2
    assert BACK_TRANSLATED.encode() not in translated.stdout
    pruned = script("prune", f"run={student.path}", "heads=0.1", "device=cpu")  # for which it finds its data again
    assert pruned.returncode == 0, pruned.stderr.decode()
