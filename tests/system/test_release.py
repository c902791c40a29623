"""A run folder that an earlier release wrote still loads and translates as it did; one of a later format is refused.

How tests/release-1 was made stands in its README.md. It is never to be made anew: a change that fails here breaks what users
have trained.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.support.commands import assert_user_error
from tests.support.paths import ROOT
from translator.inference.planning import TrainingStatistics
from translator.inference.translator import Translator
from translator.runs.run_folder import INT8_FORMAT, RunFolder
from translator.runtime.errors import UserError

RELEASE = ROOT / "tests" / "release-1"
SOURCES = (RELEASE / "sources.txt").read_text(encoding="utf-8").split("\n")[:-1]
BEAMS = {"greedy": 1, "beam": 5}


@pytest.mark.parametrize("name", BEAMS)
def test_it_translates_as_it_did(name):
    expected = (RELEASE / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]
    translator = Translator(RELEASE)
    assert translator(SOURCES, dataclasses.replace(translator.search, beam_size=BEAMS[name])) == expected
    assert len(set(expected)) > len(expected) / 2  # it says something


def test_the_script_translates_as_it_did(script):
    stdin = (RELEASE / "sources.txt").read_bytes()
    options = "search=greedy", "search.robust=false", "device=cpu", "engine=torch"
    result = script("translate", f"run={RELEASE}", *options, stdin=stdin)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == (RELEASE / "greedy.txt").read_bytes()


def test_its_data_report_is_read():
    known = TrainingStatistics.from_report(RunFolder(RELEASE).load_report())
    assert known == TrainingStatistics(longest_source=35, length_ratio=3776 / 4045)


def test_it_is_whole():
    """Nothing of it was ignored or changed on its way here; no path of the machine that made it stands in it."""
    assert {path.name for path in RELEASE.iterdir()} == {
        "README.md", "SHA256SUMS", "beam.txt", "config.yaml", "data_report.json", "greedy.txt", "model.safetensors",
        "sources.txt", "tokenizer.model"}
    assert sum(path.stat().st_size for path in RELEASE.iterdir()) < 300_000
    for path in RELEASE.iterdir():
        assert not re.search(rb"(?<![\w.])/(home|root|tmp|work|mnt|Users)\b", path.read_bytes()), path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(RELEASE, tmp_path / "run")
    return tmp_path / "run"


def test_a_later_format_is_refused_by_its_number(script, copy):
    config = copy / "config.yaml"
    later = INT8_FORMAT + 1
    config.write_text(config.read_text().replace("format: 1\n", f"format: {later}\n"))
    with pytest.raises(UserError, match=rf"format {later}.*Update") as caught:
        Translator(copy)
    assert "\n" not in str(caught.value)
    assert_user_error(script("translate", f"run={copy}", stdin=b"x\n"), f"format {later}", "Update")


def test_a_folder_older_than_formats_and_sums_is_read(copy):
    (copy / "SHA256SUMS").unlink()
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("format: 1\n", ""))
    assert Translator(copy)(SOURCES[:3]) == Translator(RELEASE)(SOURCES[:3])


def test_other_weights_would_translate_otherwise(copy):
    """What the tests above compare depends on every part of it."""
    folder = RunFolder(copy)
    translator = Translator(copy)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in translator.models[0].parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    assert translator(SOURCES) != (RELEASE / "beam.txt").read_text(encoding="utf-8").split("\n")[:-1]
    content = bytearray((copy / "tokenizer.model").read_bytes())
    content[-20] ^= 1
    (copy / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        folder.load_tokenizers()
