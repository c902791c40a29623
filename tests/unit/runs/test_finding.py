"""Runs go by folder, by name, or by id on the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from tests.support.configurations import run_config
from tests.support.hub import Repository, running_hub
from tests.support.paths import ROOT
from translator.inference.translator import Translator
from translator.runs import finding
from translator.runs.finding import chosen_runs, find_run, with_found_runs
from translator.runtime.errors import UserError

# In a process of its own: the hub's client reads its settings once, when it is imported.
WORKER = """
import sys, time
from translator import Translator
from translator.runtime.errors import UserError
time.sleep = lambda seconds: None  # the client tries again at once
for name in sys.stdin:
    try:
        print(Translator(name.strip(), device="cpu")(["She sees two trees."])[0], flush=True)
    except UserError as error:
        print(error, flush=True)
"""


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    """Where there is a folder `here`, and among the runs `here` and `there`."""
    monkeypatch.chdir(tmp_path)
    for name in ("here", "runs/here", "runs/there"):
        Path(name).mkdir(parents=True)
    return tmp_path


def test_a_name_is_looked_for_among_the_runs_after_folders(folders):
    assert [str(find_run(name)) for name in ("here", "there", "runs/there", "nowhere", "runs/nowhere")] == [
        "here", "runs/there", "runs/there", "nowhere", "runs/nowhere"]
    assert chosen_runs(("there", "here"), "runs") == (Path("runs/there"), Path("here"))
    assert find_run("there", str(folders / "here")) == Path("there")


def test_a_run_that_does_not_exist_is_answered_by_the_nearest(folders):
    (folders / "runs/there/config.yaml").touch()
    with pytest.raises(UserError, match="^run=theer: no such folder, and no such run in runs; did you mean run=there"):
        chosen_runs("theer", "runs")
    with pytest.raises(UserError, match="^run=theer: no such folder, and no runs in here yet. "):
        chosen_runs("theer", "here")


@pytest.mark.parametrize("name", ["user/name..x", "user--x/name", "user/-name", "user/" + "n" * 100])
def test_a_name_that_the_hub_forbids_is_refused_in_one_line(folders, name):
    with pytest.raises(UserError, match=f"^{name}: no such run here or on the hub"):
        find_run(name)
    assert find_run("user/nÄme") == Path("user/nÄme")


def test_options_of_a_training_go_by_name_too(folders):
    options = ["init=there", "data.teacher=[there,here]", "train.teacher=there"]
    found = with_found_runs(run_config(*options, "data.monolingual=x", "data.reverse=there"))
    assert (found.init, found.train.teacher, found.data.reverse) == ("runs/there",) * 3
    assert found.data.teacher == ("runs/there", "here")
    assert with_found_runs(run_config()) == run_config()


def test_a_run_on_the_hub_translates_as_its_folder_does(trained_folder, tmp_path):
    own = {file.name: file.read_bytes() for file in trained_folder.iterdir() if file.is_file()}
    with running_hub() as hub:
        environment = os.environ | {
            "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0",
            "PYTHONPATH": str(ROOT)}
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER], env=environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1)
        assert worker.stdin is not None
        assert worker.stdout is not None

        def translated(name: str) -> str:
            worker.stdin.write(f"{name}\n")
            return worker.stdout.readline().strip()

        hub.repositories["someone/model"] = Repository({"main": own | {"README.md": b"# Model", "extra.bin": b"0" * 9}})
        expected = Translator(trained_folder, device="cpu")(["She sees two trees."])[0]
        assert translated("someone/model") == expected
        assert not any("extra.bin" in request for request in hub.requests)
        assert translated("someone/other").startswith("someone/other: no such run here or on the hub: ")
    worker.communicate(timeout=60)


def test_without_the_hub_one_line_says_so(folders, monkeypatch):
    def unreachable(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(finding, "snapshot_download", unreachable)
    with pytest.raises(UserError, match="someone/model: no such run here, and the hub cannot be reached"):
        find_run("someone/model")
