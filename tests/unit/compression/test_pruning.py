"""`make prune` writes a complete run folder of a smaller model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from tests.support.configurations import composed, model_config, run_config
from tests.support.corpora import PAIRS, write_pairs
from translator import Translator
from translator.compression.pruning import prune_run
from translator.config.building import from_hydra
from translator.config.commands import PruneConfig
from translator.data.preparation import prepare
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.training.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer, trained_folder) -> Path:
    """A run that has learned PAIRS with a vocabulary for more: its data are a part of them."""
    path = tmp_path_factory.mktemp("pruning")
    data = write_pairs(path / "pairs.tsv", PAIRS[:24])
    config = run_config(
        *(f"model.{k}={'null' if v is None else v}" for k, v in vars(model_config()).items()), "init=other", "data=files",
        f"data.train={data}", f"data.cache={path}/cache", "data.holdout=4", "data.augment.lower=0.5", "search=greedy",
        "train.batch_tokens=500")
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair(), tokenizers=(tokenizer, tokenizer))
    folder = RunFolder(path / "whole")
    folder.create(config, (tokenizer, tokenizer), corpus.report)
    folder.begin_with(RunFolder(trained_folder).load_weights())
    folder.save_calibration({"low_log_probability": {"1": -2.0}})
    return folder.path


@pytest.fixture(autouse=True)
def _threads_as_they_are(monkeypatch) -> None:
    for module in ("compression.pruning", "training.train"):
        monkeypatch.setattr(f"translator.{module}.tune_cpu", lambda **_: None)


def prune(*options: str) -> None:
    prune_run(from_hydra(PruneConfig, composed("prune", "device=cpu", *options)))


def test_a_pruned_run_translates_and_is_fine_tuned(run, tmp_path, capsys):
    prune(f"run={run}", "heads=0.25", "encoder_layers=[1]", "vocabulary=used", f"output={tmp_path}/small")
    small, whole = RunFolder(tmp_path / "small"), RunFolder(run)
    config = small.load_config()
    heads = [count for kind in ("encoder", "decoder", "cross") for count in config.model.heads(kind)]
    assert (config.name, config.model.encoder_layers, sum(heads)) == ("small", 1, 15)  # of 20
    assert len(re.findall(r"\.\d\d-", capsys.readouterr().err)) == 5  # marked in the table
    with Image.open(small.path / "head-importance.png") as picture:
        picture.load()
    [before], [after] = ({len(t) for t in folder.load_tokenizers()} for folder in (whole, small))
    assert after < before == 320
    assert not small.calibration_file.exists()
    assert small.load_alignment(config.model) is not None
    translator = Translator(small.path, device="cpu", precision="int8")
    assert len(translator(["She sees two houses."])) == 1
    assert translator.lexicon is not None
    tuned = train(run_config(
        f"init={small.path}", "experiment=finetune", "device=cpu", "precision=fp32", "name=tuned", f"runs={tmp_path}",
        "data=files", f"data.train={config.data.train}", f"data.cache={config.data.cache}", "data.holdout=4", "search=greedy",
        "train.max_minutes=null", "train.max_epochs=null", "train.max_updates=2", "train.validate_every=2"))
    assert tuned.folder.load_config().model.cross_heads == config.model.cross_heads
    assert len(Translator(tuned.folder.path, device="cpu").target_tokenizer) == after


def test_without_unused_pieces_data_translate_the_same(run):
    prune(f"run={run}", "vocabulary=used")
    small = RunFolder(run.with_name("whole-pruned"))
    texts = [source for source, _ in PAIRS[:24:3]]
    assert Translator(small.path, device="cpu")(texts) == Translator(run, device="cpu")(texts)
    assert small.load_low_certainty() == {1: -2.0}
    assert small.load_config().tokenizer.vocab_size < 320
    with pytest.raises(UserError, match=r"whole-pruned: a run exists here. Choose another output="):
        prune(f"run={run}", "vocabulary=used")


@pytest.mark.parametrize(("options", "error"), [
    (["heads=1.0"], "heads: is a share"), (["heads=0.9"], "each attention keeps a head"), ([], "nothing to remove"),
    (["encoder_layers=[0,2]"], "the model has no layer 2"), (["encoder_layers=[]"], "encoder_layers: must have at least 1"),
    (["decoder_layers=[0,0]"], r"decoder_layers: must list .* got \[0, 0\]"), (["encoder_layers=[1,0]"], "in order")])
def test_what_cannot_be_removed_is_refused(run, tmp_path, options, error):
    with pytest.raises(UserError, match=error):
        prune(f"run={run}", f"output={tmp_path}/small", *options)
    assert not (tmp_path / "small").exists()


def test_an_imported_run_loses_layers_only(run_folder, tmp_path):
    imported = RunFolder(tmp_path / "imported")
    whole = RunFolder(run_folder)
    imported.create(whole.load_config(), whole.load_tokenizers(), {})
    imported.begin_with(whole.load_weights())
    with pytest.raises(UserError, match="no training data, as after an import"):
        prune(f"run={imported.path}", "heads=0.5")
    prune(f"run={imported.path}", "decoder_layers=[1]")
    small = RunFolder(tmp_path / "imported-pruned")
    assert small.load_config().model.decoder_layers == 1
    assert len(Translator(small.path, device="cpu")(["She sees."])) == 1
