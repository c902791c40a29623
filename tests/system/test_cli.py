"""The console command: its list, its mistakes, and messages that name what was typed."""

from __future__ import annotations

from translator.cli import COMMANDS, CONF, main

import os
import subprocess
import sys

import pytest

import translator
from tests.support.commands import assert_user_error
from tests.support.paths import ROOT
from translator.runtime import typed as typing
from translator.runtime.colour import RED, coloured
from translator.runtime.errors import UserError
from translator.runtime.typed import installation, typed


def shown(capsys, monkeypatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["translator", *words])
    main()
    return capsys.readouterr().out


def test_help_lists_every_command_and_version_says_which(capsys, monkeypatch):
    listed = {line.split()[0] for line in shown(capsys, monkeypatch).splitlines() if line.startswith("  ")}
    assert listed == set(COMMANDS)
    assert shown(capsys, monkeypatch, "--help") == shown(capsys, monkeypatch)
    assert shown(capsys, monkeypatch, "--version") == f"{translator.__version__}\n"


def test_every_command_has_options_and_a_script():
    for name, command in COMMANDS.items():
        assert (CONF / f"{command.config}.yaml").is_file()
        assert f'run("{name}")' in (ROOT / "scripts" / f"{name.replace('-', '_')}.py").read_text()


def test_a_command_that_does_not_exist_has_a_nearest():
    result = subprocess.run([sys.executable, "-m", "translator", "trian"], cwd=ROOT, capture_output=True)
    assert_user_error(result, "trian: no such command; did you mean train?")


def test_help_into_a_closed_pipe_or_a_full_disk_has_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed, open("/dev/full", "wb") as full:  # noqa: PTH123 a pipe, a device
        codes = {closed: 0, full: 2}
        for stdout, code in codes.items():
            result = subprocess.run(
                [sys.executable, "-m", "translator", "--help"], stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT)
            assert (result.returncode, len(result.stderr.splitlines())) == (code, bool(code))


def test_train_from_python_has_the_messages_of_the_shell():
    for options, words in (({"modle": "tiny"}, "modle: no such option; did you mean model"), ({"model": "tny"}, "model=tiny")):
        with pytest.raises(UserError, match=words):
            translator.train(**options)


@pytest.mark.parametrize(("words", "told"), [
    (["translate", "Hello."], "Hello.: is no option. Write OPTION=VALUE."),
    (["train", "model=tinny"], "did you mean model=tiny?"),
    (["train", "data=someone/dataset"], "write data.path=someone/dataset"),
    (["train", "data=README.md"], "Write data=files data.train=README.md"),
    (["train", "optim=sgd"], "optim=sgd: no such preset; there are adamw, muon")])
def test_a_mistake_is_one_line_with_the_right_word(script, words, told):
    assert_user_error(script(*words), told)


def test_messages_name_what_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/translator", "evaluate"])
    assert typed("translate", run="my run", text=...) == "translator translate run='my run' text=\"...\""
    assert installation("serve") == "pip install 'seq2seq-translator[serve]'"
    monkeypatch.setattr(sys, "argv", ["scripts/evaluate.py"])
    assert typed("plot-attention", run="x") == "python scripts/plot_attention.py run=x"
    monkeypatch.setattr(typing, "CALLED_BY_MAKE", True)
    assert typed("translate", run="x", text=..., device="cpu") == 'make translate RUN=x TEXT="..." ARGS="device=cpu"'
    assert typed("teach", **{"data.teacher": "x", "name": "y"}) == "make teach TEACHER=x NAME=y"
    assert installation("serve") == "make .venv/ready-serve"


def test_colour_is_for_terminals_only(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured("error:", RED) == "error:"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert coloured("error:", RED) == "\x1b[31merror:\x1b[m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("error:", RED) == "error:"
