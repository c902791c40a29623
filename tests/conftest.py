"""What several test files need: small configurations, a tiny trained-looking run folder, and the command line."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.support.commands import Script
from tests.support.configurations import model_config, run_config, tokenizer_config
from tests.support.corpora import PAIRS
from tests.support.forked import forks, run_script
from tests.support.models import model_of_pairs, random_model
from tests.support.paths import ROOT
from translator.config.building import to_yaml
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import save_tensors
from translator.text.tokenizer import Tokenizer, train_tokenizer
from translator.training import updater

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.register_profile("fuzz", deadline=None, max_examples=7000)  # 70 times the usual, for `make fuzz`
settings.load_profile("unhurried")  # --hypothesis-profile is heeded after this


@pytest.fixture(scope="session", autouse=True)
def _as_if_alone() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
    for name in ("MAKEFLAGS", "ARGS"):  # which `make test ARGS=...` hands on; the recipes that tests run take their own
        os.environ.pop(name, None)


@pytest.fixture
def several_threads(monkeypatch) -> Iterator[Callable[[int], None]]:
    """To be called with how many a test is to have; each then works on a part of the smallest batch."""
    monkeypatch.setattr(updater, "LEAST_POSITIONS", 1)
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config())


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A run folder with random weights: it translates, if badly."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    overrides = [f"model.{k}={'null' if v is None else v}" for k, v in vars(model_config()).items()]
    folder = RunFolder(path)
    config = run_config(*overrides, "search.max_length_ratio=1", "search.max_length_extra=5", "search.max_source_tokens=100")
    folder.create(config, (tokenizer, tokenizer), {"splits": {}})
    save_tensors(folder.model_file, weights_of(random_model(vocab=len(tokenizer), seed=6)))
    return path


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, run_folder: Path) -> Path:
    """A run folder that has learned PAIRS: it says words."""
    model = model_of_pairs(tokenizer)
    path = tmp_path_factory.mktemp("trained") / "tiny"
    shutil.copytree(run_folder, path)
    save_tensors(RunFolder(path).model_file, weights_of(model))
    return path


@pytest.fixture(scope="session")
def reverse_folder(trained_folder, tmp_path_factory) -> Path:
    """A run that says it translates from German to English."""
    path = tmp_path_factory.mktemp("reverse") / "tiny"
    shutil.copytree(trained_folder, path)
    folder = RunFolder(path)
    config = folder.load_config()
    data = dataclasses.replace(config.data, source="de", target="en")
    folder.config_file.write_text(to_yaml(dataclasses.replace(config, data=data)))
    return path


@pytest.fixture(scope="session", autouse=True)
def _heeding_ctrl_c() -> None:
    """Heed what shells ignore in background jobs, and nohup: the scripts under test would inherit that and not stop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def script() -> Script:
    """Run a script of ours as a user would: script("translate", "run=...", stdin=b"...")."""
    before = dict(os.environ)
    forks()

    def run(
        name: str, *options: str, stdin: bytes = b"", timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        wanted = os.environ | environment
        changed = {name for name in before | wanted if before.get(name) != wanted.get(name)}
        # The last three are set as a program runs, here too where a test calls one.
        ours = ("PYTEST_", "TRANSLATE_", "ONEDNN_", "TORCHINDUCTOR_", "HYDRA_")
        if all(name.startswith(ours) for name in changed):
            return run_script(name, options, stdin, timeout, {name: wanted.get(name, "") for name in changed})
        return subprocess.run(  # libraries read their variables as they are imported
            [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *options], input=stdin, capture_output=True,
            timeout=timeout, cwd=ROOT, env=wanted)

    return run

