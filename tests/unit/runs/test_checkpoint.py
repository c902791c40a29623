"""What is saved comes back, damage is named, and nothing is pickled."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tests.support.configurations import model_config, tokenizer_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from translator.model.weights import load_into, weights_of
from translator.runs.finding import newest_run
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runs.tensorboard import read_history
from translator.runtime import atomic_files as files
from translator.runtime.atomic_files import load_tensors, read_plain, save_tensors
from translator.runtime.errors import UserError
from translator.text.tokenizer import ModelProto, Tokenizer, train_tokenizer


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.path.mkdir(parents=True)
    folder.config_file.touch()
    return folder


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3, 2), value)}


def test_tied_weights_come_back(tmp_path):
    model, other = random_model(seed=1), random_model(seed=2)
    save_tensors(tmp_path / "m.safetensors", weights_of(model))
    (tmp_path / "any").touch()
    assert (tmp_path / "m.safetensors").stat().st_mode == (tmp_path / "any").stat().st_mode  # others may read it as well
    load_into(other, load_tensors(tmp_path / "m.safetensors"), tmp_path)
    ids = torch.randint(4, 40, (2, 5))
    assert torch.equal(model(ids, ids), other(ids, ids))
    assert other.output.table is other.source_embedding.tokens


def test_weights_of_another_model_are_refused(tmp_path):
    with pytest.raises(UserError, match="do not match the model"):
        load_into(random_model(model_config(d_ff=50)), weights_of(random_model()), tmp_path)


def test_checkpoint_round_trip_average_and_pruning(folder):
    for update in range(10, 70, 10):
        folder.save_checkpoint(update, weights(update), weights(-update), {"update": update})
    assert folder.checkpoints.resumable() == [60, 50, 40, 30, 20, 10]
    loaded, training, state = folder.checkpoints.load(40)
    assert loaded["w"][0, 0] == 40
    assert training["w"][0, 0] == -40
    assert state == {"update": 40}
    torch.testing.assert_close(folder.checkpoints.average([10, 20, 60])["w"], torch.full((3, 2), 30.0))
    folder.checkpoints.prune(resumable=2, weights=[20, 60])
    assert folder.checkpoints.resumable() == [60, 50]
    assert sorted(int(p.name) for p in folder.checkpoints.path.iterdir()) == [20, 50, 60]
    assert folder.checkpoints.average([20])["w"][0, 0] == 20


def test_pruning_leaves_alone_what_a_link_leads_to(folder, tmp_path):
    for update in (10, 20, 30):
        folder.save_checkpoint(update, weights(1), {}, {})
    elsewhere = (folder.checkpoints.path / "00000010").rename(tmp_path / "another's")
    (folder.checkpoints.path / "00000010").symlink_to(elsewhere)
    folder.checkpoints.prune(resumable=1, weights=[10])
    assert folder.checkpoints.resumable() == [30, 10]
    assert {file.name for file in elsewhere.iterdir()} == {"weights.safetensors", "training.safetensors", "state.json"}


def test_a_checkpoint_may_be_saved_again(folder):
    folder.save_checkpoint(10, weights(1), {}, {"known": 1})
    folder.save_checkpoint(10, weights(2), {}, {"known": 2})
    loaded, _, state = folder.checkpoints.load(10)
    assert (loaded["w"][0, 0], state) == (1, {"known": 2})  # of the same update only the state can be new


def test_half_written_checkpoints_are_not_seen(folder):
    folder.save_checkpoint(10, weights(1), {}, {})
    shutil.copytree(folder.checkpoints.path / "00000010", folder.checkpoints.path / ".00000020.partial")
    assert folder.checkpoints.resumable() == [10]


@pytest.mark.parametrize("name", ["weights.safetensors", "training.safetensors", "state.json"])
def test_a_file_truncated_anywhere_or_missing_is_named(folder, name):
    folder.save_checkpoint(10, weights(1), weights(1), {"update": 10, "best": [1, 2, 3]})
    path = folder.checkpoints.path / "00000010" / name
    whole = path.read_bytes().rstrip()
    for keep in (*range(0, len(whole) - 1, 7), len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(UserError, match=rf"{name}: damaged") as caught:
            folder.checkpoints.load(10)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name}: damaged"):
        folder.checkpoints.load(10)


def test_a_save_that_fails_leaves_what_was_there(folder, monkeypatch):
    path = folder.model_file
    save_tensors(path, weights(1))

    def full_disk(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(files, "save_file", full_disk)
    with pytest.raises(UserError, match=r"model\.safetensors: cannot be written"):
        save_tensors(path, weights(2))
    assert folder.load_weights()["w"][0, 0] == 1
    assert {p.name for p in folder.path.iterdir()} == {"model.safetensors", "config.yaml", "checkpoints"}  # no half file


@pytest.mark.parametrize("name", ["weights.safetensors", "training.safetensors", "state.json"])
def test_a_flipped_bit_anywhere_is_noticed(folder, name):
    """Each bit of a small file, one at a time: what is read is what was written, or nothing is."""
    folder.save_checkpoint(10, weights(1), weights(2), {"update": 10, "loss": 0.5})
    path = folder.checkpoints.path / "00000010" / name
    whole = path.read_bytes()
    noticed = 0
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            loaded, training, state = folder.checkpoints.load(10)
        except UserError:
            noticed += 1
        else:  # a bit of white space, or of the name of the sum
            assert (loaded["w"][0, 0], training["w"][2, 1], state) == (1, 2, {"update": 10, "loss": 0.5})
    assert noticed > 0.8 * 8 * len(whole)


def test_a_damaged_tokenizer_is_named(run_folder, tmp_path):
    folder = RunFolder(shutil.copytree(run_folder, tmp_path / "run"))
    file = folder.path / "tokenizer.model"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model: damaged"):
        folder.load_tokenizers()


def read_all(run: RunFolder) -> None:
    """Read every file of a run; UserError for one that it cannot do without."""
    run.load_outcome()
    run.load_report()
    read_history(run.metrics_file)
    run.load_config()
    run.load_tokenizers()
    run.load_weights()
    run.load_shortlist(1, 1)


@pytest.mark.parametrize("kind", ["device", "FIFO", "sparse"])
@pytest.mark.parametrize("name", [
    "config.yaml", "tokenizer.source.model", "tokenizer.target.model", "SHA256SUMS", "data_report.json", "outcome.json",
    "model.safetensors", "shortlist.safetensors", "metrics.jsonl"])
def test_files_that_never_end_are_refused_or_missing(run_folder, tmp_path, name, kind):
    run = RunFolder(shutil.copytree(run_folder, tmp_path / "run"))
    for side in ("source", "target"):
        shutil.copy(run.path / "tokenizer.model", run.path / f"tokenizer.{side}.model")
    (run.path / "tokenizer.model").unlink()
    (run.path / name).unlink(missing_ok=True)
    if kind == "device":
        (run.path / name).symlink_to("/dev/zero")
    elif kind == "FIFO":
        os.mkfifo(run.path / name)
    else:
        (run.path / name).touch()
        os.truncate(run.path / name, 1 << 42)
    signal.alarm(20)  # rather die than wait for ever
    try:
        with pytest.raises((UserError, OSError)):  # of a shortlist, at the latest, there is none
            read_all(run)
    finally:
        signal.alarm(0)
    with pytest.raises(OSError, match="no such file|larger"):
        read_plain(run.path / name)


@pytest.mark.parametrize("name", [
    "model.safetensors", "config.yaml", "tokenizer.source.model", "SHA256SUMS", "checkpoints/00000001/x", "tensorboard",
    "evaluation-test/hypothesis.txt", ".lock", "outcome.json", "data_report.json", "metrics.jsonl", "shortlist.safetensors",
    "calibration.json"])
def test_what_a_run_keeps_for_itself_is_no_output(run_folder, tmp_path, name):
    (tmp_path / "link").symlink_to(run_folder / name)
    for output in (run_folder / name, tmp_path / "link"):
        with pytest.raises(UserError, match=rf"^output={re.escape(str(output))}: {name.split('/')[0]} belongs to the run in "):
            require_not_of_a_run(output)
    require_not_of_a_run(tmp_path / name)
    for other in ("report", "attention", "out.txt", "ctranslate2-int8"):
        require_not_of_a_run(run_folder / other)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "evaluation-test"])
def test_a_run_is_not_laid_out_through_links(run_folder, tmp_path, tokenizer, name):
    config = RunFolder(run_folder).load_config()
    new = RunFolder(tmp_path / "new")
    (tmp_path / "elsewhere").mkdir()
    new.path.mkdir()
    (new.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name}: is a link"):
        new.create(config, (tokenizer, tokenizer), {})
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_folder_of_a_later_format_is_refused_by_version(run_folder, tmp_path):
    folder = RunFolder(shutil.copytree(run_folder, tmp_path / "run"))
    text = folder.config_file.read_text()
    folder.config_file.write_text(text.replace("format: 1", "format: 3") + "an_option_of_tomorrow: 3\n")
    with pytest.raises(UserError, match="format 3"):
        folder.load_config()
    folder.config_file.write_text(text.replace("format: 1\n", ""))  # older than the number
    folder.load_config()


def test_nothing_is_saved_into_a_folder_that_is_gone(folder):
    shutil.rmtree(folder.path)
    with pytest.raises(UserError, match="removed or moved"):
        folder.save_checkpoint(10, weights(1), {}, {})
    assert not folder.path.exists()


def test_what_a_killed_process_left_half_written_is_cleared(folder):
    folder.save_checkpoint(10, weights(1), {}, {})
    (folder.checkpoints.path / ".00000020.partial").mkdir()
    (folder.path / ".model.safetensors.partial").write_bytes(b"half")
    export = folder.path / ".huggingface.partial"
    export.mkdir()
    folder.clear_partial()
    assert list(folder.path.rglob(".*.partial")) == [export]  # of a process that may still write it
    assert folder.checkpoints.resumable() == [10]


def test_no_run_folder_and_no_weights_are_told_apart(tmp_path, run_folder):
    with pytest.raises(UserError, match="no run folder"):
        RunFolder(tmp_path).load_config()
    shutil.copytree(run_folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no model.safetensors"):
        RunFolder(tmp_path / "copy").load_weights()
    with pytest.raises(UserError, match="no trained run"):
        newest_run(tmp_path)


def test_nothing_in_a_run_folder_is_pickled(run_folder, tmp_path):
    folder = RunFolder(shutil.copytree(run_folder, tmp_path / "run"))
    folder.save_checkpoint(10, weights(1), weights(2), {"update": 10})
    folder.save_outcome({"update": 10})
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert len(files) >= 8
    known = {".safetensors", ".model", ".json", ".yaml", ".txt"}  # the last of an evaluation, which another test may have left
    for path in files:
        head = path.read_bytes()[:4]
        assert not (head[:1] == b"\x80" and head[1] <= 5), path  # a pickle of protocol 2 to 5
        assert not head.startswith(b"PK\x03\x04"), path  # torch.save's archive, which holds one
        assert path.suffix in known or path.name == "SHA256SUMS", path


def test_a_moved_folder_and_its_copy_load_alike(run_folder, tmp_path):
    first = RunFolder(run_folder)
    shutil.copytree(run_folder, tmp_path / "before")
    moved = RunFolder((tmp_path / "before").rename(tmp_path / "after"))
    assert moved.load_config() == first.load_config()
    source, target = moved.load_tokenizers()
    assert source is target
    assert source.model == first.load_tokenizers()[0].model
    own = first.load_weights()
    assert own.keys() == moved.load_weights().keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in moved.load_weights().items())


def test_separate_tokenizers_come_back_in_their_places(run_folder, tmp_path, tokenizer):
    other = train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config(model_type="bpe", joint=False))
    folder = RunFolder(tmp_path / "run")
    folder.create(RunFolder(run_folder).load_config(), (tokenizer, other), {})
    source, target = folder.load_tokenizers()
    assert (source.model, target.model) == (tokenizer.model, other.model)


def test_same_pieces_resume_with_other_training_metadata(run_folder, tmp_path, tokenizer):
    model = ModelProto.FromString(tokenizer.model)
    model.trainer_spec.ClearField("hard_vocab_limit")  # as releases before left it
    older = Tokenizer(model.SerializeToString())
    assert older.model != tokenizer.model
    folder = RunFolder(tmp_path / "run")
    folder.create(RunFolder(run_folder).load_config(), (older, older), {"fingerprint": "x"})
    folder.require_same_data((tokenizer, tokenizer), {"fingerprint": "x"})
    del model.pieces[-1]
    fewer = Tokenizer(model.SerializeToString())
    for tokenizers, fingerprint in (((tokenizer, tokenizer), "y"), ((tokenizer, fewer), "x"), ((fewer, tokenizer), "x")):
        with pytest.raises(UserError, match="have changed since this run began"):
            folder.require_same_data(tokenizers, {"fingerprint": fingerprint})


def test_lost_data_report_is_warned_about_on_resume(run_folder, folder, capsys):
    start = RunFolder(run_folder).load_config(), RunFolder(run_folder).load_tokenizers(), {"fingerprint": "x"}
    folder.config_file.unlink()
    folder.create(*start)
    folder.save_checkpoint(10, weights(1), {}, {})
    folder.create(*start)
    assert "warning" not in "".join(capsys.readouterr())
    folder.report_file.unlink()
    folder.create(*start)
    assert f"warning: {folder.report_file} does not tell" in "".join(capsys.readouterr())
    assert folder.load_report() == start[-1]


def test_the_newest_run_is_the_one_trained_last(tmp_path):
    for age, name in ((30, "a"), (10, "b"), (20, "c")):
        (tmp_path / name).mkdir()
        save_tensors(tmp_path / name / "model.safetensors", weights(1))
        (tmp_path / name / "config.yaml").touch()
        os.utime(tmp_path / name / "model.safetensors", (1e9 - age, 1e9 - age))
    (tmp_path / "untrained").mkdir()
    shutil.copytree(tmp_path / "b", tmp_path / "export")
    (tmp_path / "export" / "config.yaml").unlink()
    assert newest_run(tmp_path) == tmp_path / "b"


def test_an_outcome_comes_back_and_is_none_before(folder):
    assert folder.load_outcome() is None
    folder.save_outcome({"update": 30, "averaged": [10, 20, 30]})
    assert folder.load_outcome() == {"update": 30, "averaged": [10, 20, 30]}
    folder.outcome_file.write_bytes(folder.outcome_file.read_bytes()[:9])
    assert folder.load_outcome() is None


def test_the_average_keeps_names_types_and_shapes_of_a_model(folder):
    models = [random_model(seed=seed) for seed in range(3)]
    for number, model in enumerate(models):
        folder.save_checkpoint(number, weights_of(model), {}, {})
    mean = folder.checkpoints.average([0, 1, 2])
    for name, tensor in mean.items():
        expected = torch.stack([weights_of(model)[name] for model in models]).mean(0)
        torch.testing.assert_close(tensor, expected)
        assert tensor.dtype == expected.dtype
    load_into(models[0], mean, folder.path)
