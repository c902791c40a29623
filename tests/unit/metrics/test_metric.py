"""A metric that is registered by name, and needs the sources, reaches everything that scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from tests.support.configurations import composed, search_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import random_model
from translator.config.building import from_hydra, to_yaml
from translator.config.commands import ReportConfig
from translator.data.preparation import Corpus
from translator.evaluation.evaluate import compare, describe_comparison, evaluate
from translator.evaluation.report import write_report
from translator.inference.translator import Translator
from translator.metrics.metric import METRICS, Metric, Statistics
from translator.metrics.scores import better
from translator.runs.run_folder import RunFolder
from translator.training.validation import Validator


class Brevity(Metric):
    """How much shorter outputs are than sources, in characters a sentence."""

    name = "Brevity"
    usual = ("evaluation",)  # in validations only if train.metric names it

    def __init__(self, language: str) -> None:
        self.language = language

    def statistics(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Statistics:
        return np.array([
            (len(source) - len(hypothesis), 1) for source, hypothesis, _ in zip(sources, hypotheses, references, strict=True)])

    def value(self, total: Sequence[float] | Statistics) -> float:
        return total[0] / total[1]

    def signature(self) -> str:
        return f"characters|lang:{self.language}"


@pytest.fixture(autouse=True)
def _registered(monkeypatch) -> None:
    monkeypatch.setitem(METRICS, "brevity", Brevity)


def brevity(sources: Sequence[str], hypotheses: Sequence[str]) -> float:
    return sum(map(len, sources)) / len(sources) - sum(map(len, hypotheses)) / len(hypotheses)


def test_validation_measures_and_shows_the_metric(tokenizer, capsys):
    sources, targets = zip(*PAIRS[:8], strict=True)
    ids = {"source_ids": tokenizer.encode(sources), "target_ids": tokenizer.encode(targets)}
    rows = Dataset.from_dict({
        "source": sources, "target": targets, **ids, "source_length": [200] * 8, "target_length": [200] * 8})  # none is drawn
    corpus, model = Corpus(rows, rows, rows, tokenizer, tokenizer, {}), random_model(vocab=len(tokenizer))
    for metric in ("bleu", "brevity"):
        validator = Validator(
            corpus, model, lambda texts: [text[1:] for text in texts], lambda batch: (torch.ones(()), torch.ones(())),
            language="de", metrics=[metric], max_tokens=400)
        metrics, translations = validator.measure()
        assert ("brevity" in metrics) is (metric == "brevity")
    assert metrics["brevity"] == pytest.approx(1)

    class Tracker:
        def scalars(self, update: int, values: dict[str, float]) -> None:
            assert values["validation/brevity"] == metrics["brevity"]

        def table(self, *_: object) -> None: ...

    validator.show(1, metrics, translations, Tracker(), best=True)
    assert "Brevity 1.00" in "".join(capsys.readouterr())
    assert better("brevity", 2, 1)


def test_evaluation_significance_and_report_show_the_metric(trained_folder, run_folder, tmp_path: Path):
    sources, references = map(list, zip(*PAIRS[:12], strict=True))
    search = search_config(max_length=8, beam_size=1)
    systems = [
        (name, evaluate(Translator(run, device="cpu"), sources, references, search, "de"))
        for name, run in (("random", run_folder), ("trained", trained_folder))]
    evaluation = systems[1][1]
    evaluation.save(tmp_path)
    written = json.loads((tmp_path / "scores.json").read_text())["scores"]["brevity"]
    assert written == {
        "name": "Brevity", "value": pytest.approx(brevity(sources, evaluation.hypotheses)), "signature": "characters|lang:de"}
    rows = {row.system: row for row in compare(systems) if row.metric == "Brevity"}
    assert rows["trained"].value == written["value"]
    assert rows["trained"].p_value is not None
    assert "Brevity" in describe_comparison(compare(systems))


def test_report_shows_the_metric(trained_folder, tmp_path: Path):
    folder = RunFolder(trained_folder)
    (tmp_path / "cache").mkdir()
    config = folder.load_config()
    test = write_pairs(tmp_path / "test.tsv", PAIRS[:6])
    data = dataclasses.replace(
        config.data, path=None, train=str(write_pairs(tmp_path / "train.tsv", PAIRS[6:40])), test=str(test), validation=None,
        holdout=5, cache=f"{tmp_path}/cache")
    run = tmp_path / "run"
    RunFolder(run).create(dataclasses.replace(config, data=data), folder.load_tokenizers(), {"splits": {}})
    (run / "model.safetensors").write_bytes(folder.model_file.read_bytes())
    (run / "config.yaml").write_text(to_yaml(dataclasses.replace(config, data=data)))
    options = from_hydra(ReportConfig, composed("report", "device=cpu", "search.max_length=8", "search.beam_size=1"))
    page = write_report(run, tmp_path / "page", options).read_text(encoding="utf-8")
    assert "<td>Brevity<small><code>characters|lang:de</code>" in page
