"""The wheel, in a fresh environment and outside a checkout, is all of the program."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from tests.support.server import Server

IN_PYTHON = """
from importlib.metadata import files
import translator
from translator import Translator, train
run = train(*{options}, name="second")
assert Translator("second", device="cpu")(["She sees two trees."])[0]
names = [str(file) for file in files("seq2seq-translator")]
assert "translator/py.typed" in names
assert any(name.endswith("licenses/LICENSE") for name in names)
print(translator.__file__, run.outcome.update)
"""


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    venv.create(folder / "venv", with_pip=True)
    [wheel] = folder.glob("*.whl")
    pip = [folder / "venv/bin/python", "-m", "pip", "install", "-qq", "--constraint", ROOT / "constraints.txt"]
    for what in ("torch", f"{wheel}[serve]"):
        subprocess.run([*pip, what], check=True)
    return folder / "venv" / "bin"


def test_a_wheel_trains_translates_and_reports_anywhere(bin_folder, tmp_path):
    def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run([bin_folder / program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert "Traceback" not in result.stderr, result.stderr
        return result

    write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = ["data=files", "data.train=pairs.tsv", "train.max_updates=2", "train.validate_every=2", *TINY]
    assert "plot-attention" in run("translator", "--help").stdout
    trained = run("translator", "train", "name=first", *options).stderr
    assert 'Next:\n  translator translate text="..." run=runs/first\n  translator evaluate run=runs/first\n' in trained
    assert run("python", "-m", "translator", "translate", "run=first", "text=She sees two trees.").stdout.strip()
    assert Path(tmp_path, run("translator", "report", "examples=1").stdout.strip()).is_file()
    assert "`translator train` makes one" in run("translator", "evaluate", "runs=elsewhere").stderr
    assert run("python", "-c", IN_PYTHON.format(options=options)).stdout.startswith(str(bin_folder.parent))


def test_a_wheel_serves_its_page(bin_folder, run_folder, tmp_path):
    server = Server(tmp_path / "log", f"run={run_folder}", command=(bin_folder / "translator", "serve"))
    try:
        with urllib.request.urlopen(server.url) as page:
            assert b"<html" in page.read()
    finally:
        server.stop()
