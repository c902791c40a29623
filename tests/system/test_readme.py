"""What README and docs show is there and runs: targets, options, Python, figures."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hydra import compose, initialize_config_dir

from tests.support.commands import recipes_with
from tests.support.configurations import run_config
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
DOCS = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
COMMANDS = sorted({
    command for text in (README, *DOCS)
    for command in re.findall(r"(?:^|`)(make [a-z-]+(?: [A-Z]+=(?:\"[^\"]*\"|[\w/.-]+))*)", text, re.MULTILINE)
    if "..." not in command})


def test_every_target_is_in_readme_and_help():
    assert {m.split()[1] for m in re.findall(r"^\| `(make [a-z-]+)`", README, re.MULTILINE)} == TARGETS
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in listed.splitlines() if line and line.split()[0] in TARGETS} == TARGETS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_parses(command):
    words = shlex.split(command)
    assert words[1] in TARGETS
    arguments = dict(word.split("=", 1) for word in words[2:])
    name = words[1].replace("-", "_")
    if not (ROOT / "conf" / f"{name}.yaml").exists():
        return
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        compose(name, overrides=[*(["name=x"] if name == "train" else []), *arguments.get("ARGS", "").split()])


def test_every_file_named_is_there():
    for name in re.findall(r"`((?:translator|scripts|conf)/[\w./-]+)`", README):
        assert (ROOT / name).exists(), name


def test_options_named_exist():
    groups = vars(run_config())
    for group, option in re.findall(r"`(data|tokenizer|model|optim|train|search)\.(\w+)", README):
        assert hasattr(groups[group], option), f"{group}.{option}"


def test_the_python_example_runs(run_folder, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace("runs/tatoeba-en-de-small", str(run_folder)), {})  # the README's own words
    assert capsys.readouterr().out.startswith("[")


NASTY = [
    "It's \"so\", isn't it?", "It costs $5, $(whoami) and `ls`.", "50 % \\n of; them & more | #1", "-n", "é = (ü) ~ , $$ \\",
    "$(shell touch {mark})", "${shell touch {mark}}", "it costs $(5 dollars", "it costs ${5 dollars", "two\nlines # and $@ $<",
    "$(error no)", "$(eval X := 1)", "endif", "%"]


@pytest.mark.parametrize("text", NASTY)
def test_make_takes_any_text_to_the_letter(tmp_path, text):
    """The Makefile's own recipes, with `cat` or an echo in the place of the script."""
    text = text.replace("{mark}", str(tmp_path / "mark"))
    words = '"$@" "$TRANSLATE_ARGS" "$TRANSLATE_TARGET"'
    recipes_with(tmp_path, f'case $1 in *translate.py) cat ;; *) printf "%s\\n" {words} ;; esac')

    def make(*words: str) -> str:
        return subprocess.run(["make", "-s", *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert make("translate", f"TEXT={text}") == f"{text}\n"
    arguments = f"run={text}\n{text}\n{text}\n"
    if "\n" not in text:  # a line of a recipe
        shown = make("plot-attention", f"RUN={text}", f"ARGS={text}", f"TARGET={text}", "TEXT=x")
        assert shown == f"scripts/plot_attention.py\n{arguments}"
    assert not (tmp_path / "mark").exists()


def test_make_translate_without_text_reads_stdin(tmp_path):
    recipes_with(tmp_path, "cat")
    piped = subprocess.run(
        ["make", "-s", "translate"], cwd=tmp_path, input="a\nb\n", capture_output=True, text=True, check=True)
    assert piped.stdout == "a\nb\n"


@pytest.mark.parametrize(("words", "told"), [
    ("train max_minutes=3", 'Write make train ARGS="train.max_minutes=3"'), ("translate text=hi", 'Write TEXT="hi"'),
    ("train data=multi30k", 'Write make train ARGS="data=multi30k"'), ("train RUN=runs/x", "takes no such variable"),
    ("train model.d_model=$(", 'ARGS="model.d_model=$("'), ("serve port=5", 'ARGS="port=5"'), ("train PROCS=0", "PROCS=0: "),
    ("train PROCS=abc", "PROCS=abc: "), ("train PROCS=", "Write a whole number")])
def test_make_refuses_what_it_would_ignore(words, told):
    result = subprocess.run(["make", *words.split()], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
