"""Calibration: the error of probabilities that are known, predictions as the full pass has them, what a run keeps."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tests.support.configurations import search_config
from tests.support.corpora import PAIRS
from translator.evaluation import calibration
from translator.evaluation.calibration import calibration_of, expected_calibration_error, save_calibration
from translator.evaluation.evaluate import describe, evaluate
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.text.tokenizer import BOS_ID

SOURCES, REFERENCES = map(list, zip(*PAIRS[:12], strict=True))
QUICK = search_config(beam_size=2, max_length_ratio=0.5, max_length_extra=6)


@pytest.mark.parametrize(("confidence", "right", "error"), [
    ([1.0, 1.0], [1, 1], 0), ([1.0, 1.0], [1, 0], 0.5), ([0.5] * 4, [1, 0, 1, 0], 0), ([0.72, 0.73], [1, 1], 0.275),
    ([0.02, 0.9], [1, 1], 0.54), ([0.02, 0.98], [0, 1], 0.02)])
def test_error_is_the_mean_gap_of_the_bins(confidence, right, error):
    assert expected_calibration_error(torch.tensor(confidence), torch.tensor(right).bool()) == pytest.approx(error, abs=1e-6)


def test_predictions_are_those_of_the_full_pass(run_folder, trained_folder):
    translator = Translator(run_folder, trained_folder, device="cpu")
    found = translator.predictions(SOURCES, REFERENCES, QUICK)
    assert len(found) == len(SOURCES)
    for source, (ids, tokens, probabilities) in zip(SOURCES, found, strict=True):
        [source_ids] = translator.source_tokenizer.encode([source])
        with torch.no_grad():
            logits = [
                model(torch.tensor([source_ids]), torch.tensor([[BOS_ID, *ids[:-1]]]))[0]
                for model in translator.models]
        expected = torch.stack(logits).softmax(dim=-1).mean(dim=0).max(dim=-1)
        assert torch.equal(tokens, expected.indices)
        torch.testing.assert_close(probabilities, expected.values, atol=1e-5, rtol=1e-4)


def test_evaluation_prints_and_keeps_the_calibration(trained_folder, tmp_path):
    evaluation = evaluate(Translator(trained_folder, device="cpu"), SOURCES, REFERENCES, QUICK, "de")
    assert evaluation.calibration is not None
    assert evaluation.calibration.accuracy > 0.5
    assert "calibration error" in describe(evaluation)
    evaluation.save(tmp_path)
    assert json.loads((tmp_path / "scores.json").read_text())["calibration"]["error"] == evaluation.calibration.error


def test_references_too_long_to_rate_leave_no_calibration(trained_folder):
    translator = Translator(trained_folder, device="cpu")
    assert calibration_of(translator, SOURCES[:2], REFERENCES[:2], search_config(max_source_tokens=3)) is None


def test_a_run_keeps_what_is_unsure_on_validation(trained_folder, tmp_path, monkeypatch):
    folder = RunFolder(shutil.copytree(trained_folder, tmp_path / "run"))
    translator = Translator(trained_folder, device="cpu")
    save_calibration(folder, translator, SOURCES, REFERENCES, QUICK)
    assert folder.load_low_certainty() == {}  # 12 sentences are too few
    monkeypatch.setattr(calibration, "LEAST", 10)
    save_calibration(folder, translator, SOURCES, REFERENCES, QUICK)
    low = folder.load_low_certainty()
    assert list(low) == [1, 2]
    unsure = [
        any("unsure" in warning for warning in translation.warnings)
        for translation in Translator(folder.path, device="cpu").translate(SOURCES, QUICK)]
    assert sum(unsure) == 1  # the least certain of them
