"""Warnings of text in another language, and of translations that the model is unsure of: by line, and never in training."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import pytest

from tests.support.configurations import search_config
from tests.support.corpora import PAIRS
from translator.inference.confidence import foreign_source, low_certainty, mean_log_probability
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.search import Hypothesis

FRENCH = "Demain matin, nous irons au marché."
SOURCES = [source for source, _ in PAIRS[:3]]
QUICK = search_config(beam_size=2, max_length_ratio=0.5, max_length_extra=6)
FOREIGN = "this looks like French; this model reads English"


def test_the_languages_of_a_model_are_named():
    assert foreign_source(FRENCH, ("en",)) == FOREIGN
    assert foreign_source(FRENCH, ("en", "de")) == f"{FOREIGN} or German"
    assert foreign_source(FRENCH, ("en", "de", "es", "cs", "it")).endswith("this model reads 5 other languages")
    assert foreign_source(FRENCH, ("en", "fr")) == foreign_source(FRENCH, ("source",)) == foreign_source(FRENCH, ()) == ""


def test_a_foreign_sentence_is_translated_and_warned_of(trained_folder):
    translator = Translator(trained_folder, device="cpu")
    plain = Translator(dataclasses.replace(TrainedModel.load(trained_folder, "cpu"), languages=()))
    texts = [SOURCES[0], f"{SOURCES[1]} {FRENCH} {FRENCH}", "", "Dr. Müller, Zürich"]
    translations = translator.translate(texts, QUICK)
    assert [FOREIGN in translation.warnings for translation in translations] == [False, True, False, False]
    assert translations[1].warnings.count(FOREIGN) == 1
    assert [translation.text for translation in translations] == plain(texts, QUICK)


def test_a_foreign_line_is_named_by_number_and_in_jsonl(script, trained_folder, tmp_path):
    output = tmp_path / "out.jsonl"
    result = script("translate", f"run={trained_folder}", "device=cpu", "search.max_length=9", f"output={output}",
                    stdin=f"{SOURCES[0]}\n{FRENCH}\n".encode())
    assert result.returncode == 0
    warned = [line for line in result.stderr.decode().splitlines() if "longest length" not in line]
    assert warned == [f"line 2: {FOREIGN}"]
    assert [json.loads(line)["warnings"] for line in output.read_text().splitlines()] == [[], [FOREIGN]]


def test_low_certainty_is_judged_by_beam_size():
    hypothesis = Hypothesis((5, 6, 7), -8.0, -8.0, False)
    assert mean_log_probability(hypothesis) == -2.0
    low = {1: -2.5, 5: -1.5}
    for beam, warned in ((1, False), (4, False), (5, True), (9, True)):
        assert bool(low_certainty(hypothesis, search_config(beam_size=beam), low)) == warned
    assert "the mean probability of a token is 14 %" in low_certainty(hypothesis, search_config(beam_size=5), low)
    assert not low_certainty(hypothesis, search_config(beam_size=5), {})
    assert not low_certainty(hypothesis, search_config(beam_size=5), {1: math.nan})
    assert not low_certainty(hypothesis, search_config(beam_size=5, sampling=True), low)


@pytest.mark.parametrize(("kept", "warned"), [
    ({"low_log_probability": {"1": -0.0}}, True), ({"low_log_probability": {"1": -99.0}}, False), ({}, False), ([], False),
    ({"low_log_probability": [1]}, False), ({"low_log_probability": {"x": 1}}, False)])
def test_the_run_folder_says_what_is_unsure(trained_folder, tmp_path, kept, warned):
    run = shutil.copytree(trained_folder, tmp_path / "run")
    RunFolder(run).save_calibration(kept)
    [translation] = Translator(run, device="cpu").translate(SOURCES[:1], QUICK)
    assert any("unsure" in warning for warning in translation.warnings) == warned
