"""The heads that align are chosen by a lexicon; guided alignment teaches one, and is a sum over the sentences of a batch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.support.configurations import model_config, run_config
from tests.support.models import random_model
from tests.support.trainings import small_corpus
from translator.data.batching import Batch, collate
from translator.data.ibm_model_1 import learn_lexicon
from translator.data.lexicon import Lexicon
from translator.data.preparation import Corpus
from translator.model.alignment_heads import AlignmentHeads
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer
from translator.training.alignment import agreement_by_heads, guided_head, keep_alignment
from translator.training.updater import Updater


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> Corpus:
    return small_corpus(tokenizer, validation=8)


@pytest.fixture(scope="module")
def lexicon(corpus: Corpus) -> Lexicon:
    return learn_lexicon(corpus.train, len(corpus.target_tokenizer))


def batch_of_rows(corpus: Corpus, count: int) -> Batch:
    rows = corpus.train[:count]
    return collate(rows["source_ids"], rows["target_ids"])


def updater_of(corpus: Corpus, lexicon: Lexicon | None, *options: str) -> Updater:
    config = run_config("optim.lr=5e-3", "train.sampled_softmax=0", "optim=adamw", *options)
    model = random_model(model_config(), vocab=len(corpus.source_tokenizer))
    return Updater(model, config.optim, config.train, precision=Precision.FP32, lexicon=lexicon)


@pytest.mark.parametrize("planted", [AlignmentHeads((1,), 2), AlignmentHeads((0,), 3, next_row=True), AlignmentHeads((1,))])
def test_the_planted_head_is_chosen(corpus, lexicon, monkeypatch, tmp_path, planted):
    model = random_model(model_config(), vocab=len(corpus.source_tokenizer))
    decode, sources = model.decode, list[torch.Tensor]()

    def planting(target_in, memory, mask, *, weights_of=()):
        hidden, weights = decode(target_in, memory, mask, weights_of=weights_of)
        target = torch.cat([target_in[:, 1:], torch.zeros_like(target_in[:, :1])], dim=1)
        links = lexicon.agreement(sources[-1], target)
        links = torch.cat([links[:, :1], links[:, :-1]], dim=1) if planted.next_row else links
        [layer] = planted.layers
        weights[layer][:, slice(None) if planted.head is None else planted.head] = (
            links if planted.head is not None else links[:, None])
        return hidden, weights

    monkeypatch.setattr(model, "decode", planting)
    monkeypatch.setattr(model, "encode", lambda source, encode=model.encode: (sources.append(source), encode(source))[1])
    folder = RunFolder(tmp_path)
    keep_alignment(model, corpus, folder)
    chosen = folder.load_alignment(model.config)
    assert chosen == model.alignment_heads
    assert chosen is not None
    assert (chosen.layers, chosen.next_row) == (planted.layers, planted.next_row)
    assert planted.head in (None, chosen.head)
    assert json.loads(folder.alignment_file.read_text())["agreement"] > 0.9


def test_guided_alignment_raises_the_agreement_of_its_head(corpus, lexicon):
    head, agreement = guided_head(2), {}
    for weight in (0, 1):
        updater = updater_of(corpus, lexicon, f"train.guided_alignment={weight}")
        for _ in range(25):
            updater.step([batch_of_rows(corpus, 24)], 5e-3)
        agreement[weight] = agreement_by_heads(updater.model, lexicon, corpus.train)[head]
    assert agreement[1] > agreement[0] + 0.1


def test_the_guided_loss_is_a_sum_over_sentences_and_passes(corpus, lexicon):
    batch = batch_of_rows(corpus, 12)
    updater = updater_of(corpus, lexicon, "train.guided_alignment=0.5")
    updater.model.train()
    of_all = float(updater.loss(batch)[0].detach())
    assert sum(float(updater.loss(part)[0].detach()) for part in batch.parts(3)) == pytest.approx(of_all, rel=1e-4)
    without = updater_of(corpus, None)
    without.model.train()
    assert float(without.loss(batch)[0].detach()) < of_all - 1
    for through in ("model", "decoder"):
        twice = updater_of(corpus, lexicon, "train.guided_alignment=0.5", "train.r_drop=1", f"train.r_drop_through={through}")
        twice.model.train()
        assert float(twice.loss(batch)[0].detach()) == pytest.approx(of_all, rel=1e-4)
    updater.model.eval()  # validation's loss stays comparable
    assert float(updater.loss(batch)[0].detach()) == pytest.approx(float(without.loss(batch)[0].detach()), rel=1e-5)


@pytest.mark.parametrize(
    "change", [{"layers": [2]}, {"layers": []}, {"head": 4}, {"head": "x"}, {"format": 2}, {"layers": None}])
def test_an_alignment_of_another_model_is_refused(tmp_path, change):
    folder = RunFolder(tmp_path)
    assert folder.load_alignment(model_config()) is None
    folder.save_alignment(AlignmentHeads((1,), 3))
    assert folder.load_alignment(model_config()) == AlignmentHeads((1,), 3)
    folder.alignment_file.write_text(json.dumps(json.loads(folder.alignment_file.read_text()) | change))
    with pytest.raises(UserError, match=r"alignment\.json: does not match this run"):
        folder.load_alignment(model_config())


def test_a_lexicon_of_other_vocabularies_is_refused(tmp_path, lexicon):
    folder = RunFolder(tmp_path)
    pieces = lexicon.target_pieces
    assert folder.load_lexicon(pieces, pieces) is None
    folder.save_lexicon(lexicon)
    loaded = folder.load_lexicon(pieces, pieces)
    assert loaded is not None
    assert all(map(torch.equal, loaded.tensors().values(), lexicon.tensors().values()))
    folder.save_lexicon(replace(lexicon, keys=lexicon.keys + pieces**2))
    with pytest.raises(UserError, match=r"lexicon\.safetensors: does not match this run"):
        folder.load_lexicon(pieces, pieces)
