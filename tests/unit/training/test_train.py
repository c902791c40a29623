"""A training as a Python call."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from tests.support.configurations import TINY, run_config
from tests.support.corpora import PAIRS, write_pairs
from translator import Translator
from translator.runtime.errors import UserError
from translator.training.train import train


@pytest.mark.parametrize("options", [
    [], ["model.positions=alibi", "model.attention_gate=true", "train.keep=[chrf++]"],
    ["model.attention=additive", "model.adaptive_span=4", "train.span_penalty=0.01"],
    ["model.decoder=ssru", "model.positions=rotary"]])
def test_train_returns_its_outcome_and_the_run_folder(options, tmp_path, monkeypatch):
    monkeypatch.setattr("translator.training.train.tune_cpu", lambda **_: None)  # it would last for all tests after this
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    config = run_config(
        *TINY, "data=files", f"data.train={data}", f"data.cache={tmp_path}/cache", "data.holdout=8", f"runs={tmp_path}",
        "train.max_epochs=null", "train.max_minutes=null", "train.max_updates=4", "train.validate_every=2", "search=greedy",
        *options)
    run = train(config)
    assert (run.folder.path, run.outcome.update) == (tmp_path / "test", 4)
    assert "train.max_updates" in run.outcome.reason
    assert {"bleu", "chrf", "loss"} <= run.outcome.metrics.keys()
    assert run.folder.load_outcome() == json.loads(json.dumps(dataclasses.asdict(run.outcome)))
    assert ("spans/encoder.layer1.head2" in run.folder.metrics_file.read_text()) == ("model.adaptive_span=4" in options)
    assert run.evaluation is not None
    assert len(run.evaluation.hypotheses) == 8
    translator = Translator(run.folder.path, device="cpu")
    assert translator(run.evaluation.sources) == run.evaluation.hypotheses
    assert translator.lexicon is not None
    assert translator.models[0].alignment_heads == run.folder.load_alignment(config.model)
    for metric in config.train.keep:
        best = Translator(run.folder.best(metric).path, device="cpu")
        assert len(best(run.evaluation.sources)) == 8
        assert best.lexicon is not None
        assert best.models[0].alignment_heads == translator.models[0].alignment_heads
    [pair] = translator.translate(["She sees a dog."])[0].pairs
    [rating] = translator.rate([pair], translator.search)
    assert not torch.equal(rating.alignment, rating.attention)
    run.folder.lexicon_file.unlink()
    [without] = Translator(run.folder.path, device="cpu").rate([pair], translator.search)
    assert torch.equal(without.attention, rating.attention)
    assert torch.equal(without.alignment, without.attention) or translator.models[0].alignment_heads.next_row
    assert train(config).outcome == run.outcome  # a finished training has nothing left to do
    with pytest.raises(UserError, match=r"seed=2: .* started with 1"):
        train(dataclasses.replace(config, seed=2))
