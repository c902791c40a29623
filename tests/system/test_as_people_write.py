"""Text as people write it, through the real command: what is stated here holds for any model, however little it has learned."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.configurations import model_config, run_config, tokenizer_config
from tests.support.corpora import PAIRS
from tests.support.models import model_of_pairs
from translator.evaluation.perturbations import PLACEHOLDERS, holds_link, holds_number
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import save_tensors
from translator.text.tokenizer import train_tokenizer

# As reported: what was written, and what must be in the translation exactly once.
KEPT = {
    "My email is tom@example.com.": "tom@example.com", "It costs $25.50.": "25.50", "Open the %s file": "%s",
    "I ❤️ tea 😀": "😀", "We read https://example.org/a?b=1 today.": "https://example.org/a?b=1", "Hello {name}!": "{name}",
    "Set %(count)d to 1,234,567.": "%(count)d", "Ask @anna_1 about #Gardens.": "@anna_1",
    "She sees two trees in Łódź.": "Łódź"}
NUMBERS = {
    "She was born in 1987.": "1987", "It weighs 2.75 pounds.": "2.75", "The train leaves at 7:45.": "7:45",
    "There are 12,500 houses.": "12,500", "Call +49 30 1234 5678.": "+49 30 1234 5678"}
# Each kind of item that the robustness table inserts.
ITEMS = {f"She sees {item} and two trees.": item for item in (make(Random(5)) for make in PLACEHOLDERS.values())}
# What stands before and behind a sentence, and comes back unchanged.
MARKED = {f"{before}She sees two trees{after}": (before, after.lstrip(".")) for before, after in (
    ("“", ".”"), ("(", ".)"), ("- ", "."), ("• ", "."), ("", "!!!"), ("1. ", "."), ("", ". 😀"), ("„", ".“"))}
JOINED = ("I like tea. She likes coffee. They drink water.", "I like tea.", "She likes coffee.", "They drink water.")
BOLD, LINKED = "<b>She sees two trees.</b>", 'She sees <a href="https://example.org/x">two trees</a> today.'
SINGLE = ("GOOD MORNING", "She sees two trees.", "She  sees  two   trees.", BOLD, LINKED)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned PAIRS, with a vocabulary that has placeholders."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "plain")
    texts = [text for pair in PAIRS for text in pair] + ["Tom: Good Morning, Anna. Anna: I like this, Tom."] * 20
    tokenizer = train_tokenizer(texts, tokenizer_config(placeholders=9))
    overrides = [f"model.{k}={'null' if v is None else v}" for k, v in vars(model_config()).items()]
    folder.create(run_config(*overrides, "tokenizer.placeholders=9"), (tokenizer, tokenizer), {"splits": {}})
    save_tensors(folder.model_file, weights_of(model_of_pairs(tokenizer)))
    return folder.path


@pytest.fixture(scope="module")
def command(script, run) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """The translate command on lines."""
    return lambda *lines, **options: script(
        "translate", f"run={run}", "device=cpu", *(f"{name}={value}" for name, value in options.items()),
        stdin="".join(f"{line}\n" for line in lines).encode())


@pytest.fixture(scope="module")
def outputs(command) -> dict[str, str]:
    """What the command makes of every line of these tests, in one call."""
    lines = [*JOINED, *KEPT, *ITEMS, *NUMBERS, *MARKED, *SINGLE]
    result = command(*lines)
    assert result.returncode == 0, result.stderr
    return dict(zip(lines, result.stdout.decode().split("\n")[:-1], strict=True))


def test_no_sentence_of_a_line_is_lost(outputs):
    whole, *single = (outputs[line] for line in JOINED)
    assert whole == " ".join(single)
    assert all(single)


@pytest.mark.parametrize("source", [*KEPT, *ITEMS])
def test_what_must_come_through_comes_through_once(outputs, source):
    assert outputs[source].count((KEPT | ITEMS)[source]) == 1, outputs[source]


@pytest.mark.parametrize("source", NUMBERS)
def test_digits_come_through_in_order(outputs, source):
    assert holds_number(outputs[source], NUMBERS[source]), outputs[source]


@pytest.mark.parametrize("source", MARKED)
def test_marks_around_a_sentence_are_given_back(outputs, source):
    before, after = MARKED[source]
    assert outputs[source].startswith(before)
    assert outputs[source].endswith(after)


def test_capitals_give_capitals(outputs):
    assert outputs["GOOD MORNING"] == outputs["GOOD MORNING"].upper() != outputs["GOOD MORNING"].lower()


def test_doubled_spaces_change_nothing(outputs):
    assert outputs["She sees two trees."] == outputs["She  sees  two   trees."]


def test_tags_and_their_attributes_are_given_back(outputs):
    assert outputs[BOLD].startswith("<b>")
    assert outputs[BOLD].endswith("</b>")
    assert holds_link(outputs[LINKED], '<a href="https://example.org/x">')


def test_text_in_another_language_gets_a_warning(command):
    french = "Le boulanger du village ouvre sa boutique tous les matins à six heures."
    english = "The baker of the village opens his shop every morning at six."
    result = command(english, french, english)
    assert result.returncode == 0
    warned = [line for line in result.stderr.decode().splitlines() if "French" in line]
    assert len(warned) == 1
    assert "line 2" in warned[0]
    assert "English" in warned[0]
    answers = [json.loads(line) for line in command(
        json.dumps({"source": english}), json.dumps({"source": french}), input_format="jsonl", output_format="jsonl"
    ).stdout.splitlines()]
    assert ["French" in " ".join(answer.get("warnings", [])) for answer in answers] == [False, True]
