"""What is saved comes back, damage is named, and nothing is pickled."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.conftest import random_model
from translator.checkpoint import RunFolder, load_into, load_tensors, newest_run, save_tensors, weights_of
from translator.errors import UserError


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    return folder


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3, 2), value)}


def test_tied_weights_come_back(tmp_path):
    model, other = random_model(seed=1), random_model(seed=2)
    save_tensors(tmp_path / "m.safetensors", weights_of(model))
    load_into(other, load_tensors(tmp_path / "m.safetensors"), tmp_path)
    ids = torch.randint(4, 40, (2, 5))
    assert torch.equal(model(ids, ids), other(ids, ids))
    assert other.output.weight is other.source_embedding.tokens.weight


def test_weights_of_another_model_are_refused(tmp_path):
    from tests.conftest import model_config

    with pytest.raises(UserError, match="another model"):
        load_into(random_model(model_config(d_ff=50)), weights_of(random_model()), tmp_path)


def test_checkpoint_round_trip_average_and_pruning(folder):
    for update in range(10, 70, 10):
        folder.save_checkpoint(update, weights(update), weights(-update), {"update": update})
    assert folder.resumable() == [60, 50, 40, 30, 20, 10]
    loaded, training, state = folder.load_checkpoint(40)
    assert loaded["w"][0, 0] == 40
    assert training["w"][0, 0] == -40
    assert state == {"update": 40}
    torch.testing.assert_close(folder.average([10, 20, 60])["w"], torch.full((3, 2), 30.0))
    folder.prune(resumable=2, weights=[20, 60])
    assert folder.resumable() == [60, 50]
    assert sorted(int(p.name) for p in folder.checkpoints.iterdir()) == [20, 50, 60]
    assert folder.average([20])["w"][0, 0] == 20


def test_a_checkpoint_may_be_saved_again(folder):
    folder.save_checkpoint(10, weights(1), {}, {"known": 1})
    folder.save_checkpoint(10, weights(2), {}, {"known": 2})
    loaded, _, state = folder.load_checkpoint(10)
    assert (loaded["w"][0, 0], state) == (2, {"known": 2})


def test_half_written_checkpoints_are_not_seen(folder):
    folder.save_checkpoint(10, weights(1), {}, {})
    shutil.copytree(folder.checkpoints / "00000010", folder.checkpoints / ".00000020.partial")
    assert folder.resumable() == [10]


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_file_is_named(folder, keep):
    folder.save_checkpoint(10, weights(1), weights(1), {})
    path = folder.checkpoints / "00000010" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"weights\.safetensors: damaged"):
        folder.load_checkpoint(10)


def test_no_run_folder_and_no_weights_are_told_apart(tmp_path, run_folder):
    with pytest.raises(UserError, match="no run folder"):
        RunFolder(tmp_path).load_config()
    shutil.copytree(run_folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights yet"):
        RunFolder(tmp_path / "copy").load_weights()
    with pytest.raises(UserError, match="no trained run"):
        newest_run(tmp_path)


def test_nothing_in_a_run_folder_is_pickled(run_folder):
    for path in run_folder.rglob("*"):
        if path.is_file():
            head = path.read_bytes()[:4]
            assert not head.startswith((b"\x80\x02", b"\x80\x04", b"PK\x03\x04")), path
