"""The report says what the sacrebleu command says of the files it wrote."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import PAIRS, assert_user_error, search_config
from translator.errors import UserError
from translator.evaluate import compare, describe, describe_comparison, evaluate
from translator.translate import Translator

SOURCES = [source for source, _ in PAIRS[:24]]
REFERENCES = [target for _, target in PAIRS[:24]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "test.en").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (folder / "test.de").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    return folder


def test_the_sacrebleu_command_agrees(script, run_folder, files):
    result = script(
        "evaluate", f"run={run_folder}", f"source_file={files / 'test.en'}", f"reference_file={files / 'test.de'}", "worst=2")
    assert result.returncode == 0, result.stderr
    printed = result.stdout.decode()
    folder = run_folder / "evaluation-test.en"
    scores = json.loads((folder / "scores.json").read_text())["scores"]
    command = subprocess.run(
        [sys.executable, "-m", "sacrebleu", str(folder / "reference.txt"), "-i", str(folder / "hypothesis.txt"), "-m", "bleu",
         "chrf", "ter", "-w", "4"], capture_output=True, text=True, check=True)
    for theirs in json.loads(command.stdout):
        ours = next(s for s in scores.values() if s["name"] == theirs["name"])
        assert ours["value"] == pytest.approx(theirs["score"], abs=1e-3)
        assert ours["signature"] == theirs["signature"]
        assert theirs["signature"] in printed
    assert printed.count("source     ") == 2
    assert "24 sentences" in printed
    assert "hit the length limit" in printed


def test_lines_break_nowhere(run_folder, tmp_path):
    evaluation = evaluate(Translator(run_folder, device="cpu"), ["She sees\ntwo trees.", "x"], ["a\r\nb", "c\u2028d"], search_config())
    evaluation.save(tmp_path)
    for name in ("source", "reference", "hypothesis"):
        assert (tmp_path / f"{name}.txt").read_bytes().count(b"\n") == 2


def test_a_run_against_another(script, run_folder, files):
    result = script(
        "evaluate", f"run={run_folder}", f"against={run_folder}", f"source_file={files / 'test.en'}",
        f"reference_file={files / 'test.de'}", "search=greedy", "worst=0")
    assert result.returncode == 0, result.stderr
    assert "paired bootstrap" in result.stdout.decode()
    assert "p = 1.0000" in result.stdout.decode()


def test_comparison_and_limits_in_words(run_folder):
    translator = Translator(run_folder, device="cpu")
    short = evaluate(translator, SOURCES, REFERENCES, search_config(max_length=1))
    long = evaluate(translator, SOURCES, REFERENCES, search_config())
    assert short.hit_limit > 0.5
    assert "BLEU" in describe_comparison(compare([("a", short), ("b", long)]))
    assert f"{100 * short.hit_limit:.1f} %" in describe(short)
    assert len(long.worst(3)) == 3
    with pytest.raises(UserError, match="no sentences"):
        evaluate(translator, [], [], search_config())


@pytest.mark.parametrize(("content", "words"), [
    (b"one\ntwo\n", ("24", "2")), (b"caf\xe9\n", ("test.bad:1", "UTF-8"))])
def test_files_that_do_not_fit_are_one_line(script, run_folder, files, content, words):
    (files / "test.bad").write_bytes(content)
    result = script("evaluate", f"run={run_folder}", f"source_file={files / 'test.en'}", f"reference_file={files / 'test.bad'}")
    assert_user_error(result, *words)
