"""The frame of every script: its streams, its first second, and options as they are typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import assert_user_error
from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import Interrupted
from translator.runtime.overrides import split_words, take_literally
from translator.runtime.signals import Interruption

SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if path.stem != "check_words")

CTRL_C = """
import os, runpy, signal, sys

class Pressing:
    def find_spec(self, name, path=None, target=None):
        if name in ("hydra", "torch", "pyarrow"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_ctrl_c_during_the_imports_is_one_line(name):
    command = [sys.executable, "-c", CTRL_C, str(ROOT / "scripts" / f"{name}.py")]
    result = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"interrupted\n")


def test_every_script_imports_with_all_streams_closed(tmp_path):
    code = "\n".join([
        "import translator.runtime.script, runpy, sys",
        f"for name in {SCRIPTS}: runpy.run_path(f'{ROOT}/scripts/{{name}}.py')",
        "print('lost', file=sys.stderr)",
        f"open('{tmp_path}/done', 'x')"])
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, timeout=120).returncode == 0
    assert (tmp_path / "done").exists()


def test_a_training_outlives_the_reader_of_its_log(tmp_path):
    """As in `make train 2>&1 | grep -m1 plan`."""
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    training = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "train.py"), *TINY, "data=files", f"data.train={data}", f"runs={tmp_path}",
         f"data.cache={tmp_path}/cache", "name=größe, 2=2", "train.max_minutes=null", "train.max_epochs=null",
         "train.max_updates=10", "train.validate_every=5", "train.log_every=1", "search=greedy"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert training.stdout is not None
    assert any(line.startswith(b"plan") for line in training.stdout)
    training.stdout.close()
    assert training.wait(120) == 0
    run = RunFolder(tmp_path / "größe, 2=2")
    assert run.load_outcome()["update"] <= 10
    assert (run.path / "evaluation-test" / "scores.json").is_file()


@pytest.mark.torture
@pytest.mark.parametrize("name", ["evaluate", "report", "shortlist"])
def test_scripts_work_with_stderr_closed(tmp_path, script, name):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = ["data=files", f"data.train={data}", f"data.cache={tmp_path}/cache", f"runs={tmp_path}", "name=run"]
    assert script("train", *TINY, *options, "train.max_updates=2", "train.max_minutes=null").returncode == 0
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), f"run={tmp_path}/run"]
    result = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], cwd=ROOT, capture_output=True, timeout=120)
    assert (result.returncode, bool(result.stdout)) == (0, True)


@pytest.mark.parametrize("count", [1, 10_000])
def test_a_full_disk_under_stdout_is_one_line(count):
    code = f"from translator.runtime.script import one_line_errors\nwith one_line_errors(): print('x' * {count})"
    with open("/dev/full", "wb") as full:  # noqa: PTH123 a device
        result = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, cwd=ROOT, timeout=60,
            env=os.environ | {"PYTHONUNBUFFERED": ""})
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.endswith(b"could not be read or written: No space left on device\n")


@pytest.mark.parametrize("error", ["MemoryError()", "MemoryError('std::bad_alloc')", "RuntimeError('std::bad_alloc')"])
def test_memory_that_does_not_suffice_is_one_line(error):
    code = f"from translator.runtime.script import one_line_errors\nwith one_line_errors(): raise {error}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60)
    assert_user_error(result, "out of memory")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_unless_it_is_ignored(number):
    with pytest.raises(Interrupted) as stopped, Interruption().caught():
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == 128 + number
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interruption().caught():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


@given(st.text(st.characters(exclude_characters="\\$", codec="utf-8")))
def test_any_path_is_an_option_s_value_as_typed(text):
    [word] = take_literally([f"run=runs/{text}"])
    read = OverridesParser.create().parse_override(word)
    assert not read.is_sweep_override()
    assert read.value() == f"runs/{text}"


@pytest.mark.parametrize(("typed", "value"), [
    ("runs/a,runs/b", "runs/a,runs/b"), ("[runs/a,größe]", ["runs/a", "größe"]), ("['a b','c']", ["a b", "c"]),
    ("[o'clock,a(1)]", ["o'clock", "a(1)"]), ("[]", []),
    ("'a, b'", "a, b"), ("null", None), ("3", 3), ("str(3)", "3"), ("a(1)", "a(1)"), ("{a:1}", {"a": 1}), ("~/x", "HOME/x"),
    ("o'clock", "o'clock"), ("", "")])
def test_what_is_written_for_hydra_stays(monkeypatch, typed, value):
    monkeypatch.setenv("HOME", "HOME")
    [word] = take_literally([f"run={typed}"])
    assert OverridesParser.create().parse_override(word).value() == value


def test_in_several_runs_a_comma_separates_values():
    assert take_literally(["-m", "seed=1,2", "--x=é"]) == ["-m", "seed=1,2", "--x=é"]


@pytest.mark.parametrize(("line", "words"), [
    ("a=1  b=2\n", ["a=1", "b=2"]), ("name='a b' 'c d=e'", ["name=a b", "c d=e"]), ('x="a \\" b"', ['x=a " b']),
    ("x=\"'>>ita<<'\"", ["x='>>ita<<'"]), (r"x=a\(1\) y=a\ b", ["x=a(1)", "y=a b"]),
    ("x=$(id);`id`|&<>*~(", ["x=$(id);`id`|&<>*~("]), ("", [])])
def test_a_line_of_options_is_split_and_nothing_in_it_expanded(line, words):
    assert split_words(line) == words
