"""The board shows runs under their names, the last one by default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from translator.runs.board import link_by_name, watched_last
from translator.runtime.errors import UserError


def run_with_curves(path: Path, age: float = 0) -> Path:
    events = path / "tensorboard" / "events.out.tfevents.1"
    events.parent.mkdir(parents=True)
    events.touch()
    os.utime(events, (1e9 - age, 1e9 - age))
    return path


def test_runs_are_named_by_name_and_by_path_if_equal(tmp_path: Path):
    runs = [run_with_curves(tmp_path / place) for place in ("a/x, y", "a/z", "b/z")]
    board = tmp_path / "board"
    link_by_name([*runs, runs[0]], board)
    shown = {os.path.relpath(folder, board) for folder, _, files in os.walk(board, followlinks=True) if files}
    path = str(tmp_path).strip("/")
    assert shown == {"x, y", f"{path}/a/z", f"{path}/b/z"}


def test_the_run_trained_last_is_shown_from_its_start(tmp_path: Path):
    run_with_curves(tmp_path / "old", age=10)
    newest = run_with_curves(tmp_path / "new")
    assert watched_last(tmp_path) == newest


def test_a_folder_without_curves_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no run with curves here yet"):
        watched_last(tmp_path)
    with pytest.raises(UserError, match="has no curves"):
        link_by_name([tmp_path], tmp_path)
