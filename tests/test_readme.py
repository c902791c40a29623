"""What README and docs show is there and runs: targets, options, Python, figures."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hydra import compose, initialize_config_dir

from tests.conftest import ROOT, recipes_with, run_config

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


def test_make_translate_takes_text_to_the_letter(tmp_path):
    """Quotes, dollar signs, commas: the Makefile's own recipe, with `cat` in the place of the script."""
    recipes_with(tmp_path, "cat")
    for text in ("It's \"so\", isn't it?", "It costs $5, $(whoami) and `ls`.", "50 % \\n of; them & more | #1", "-n"):
        shown = subprocess.run(
            ["make", "-s", "translate", f"TEXT={text}"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert shown == text + "\n"
    piped = subprocess.run(
        ["make", "-s", "translate"], cwd=tmp_path, input="a\nb\n", capture_output=True, text=True, check=True)
    assert piped.stdout == "a\nb\n"
