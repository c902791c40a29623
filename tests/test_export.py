"""What other programs make of an export: the same probabilities, tokens and texts as ours."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import pytest
import torch
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.conftest import PAIRS, assert_user_error, model_config, random_model, search_config, tokenizer_config
from translator.batching import pad
from translator.checkpoint import RunFolder
from translator.config import SearchConfig
from translator.errors import UserError
from translator.export import ctranslate2 as to_ctranslate2
from translator.export import huggingface as to_huggingface
from translator.export.decoding import Decoding
from translator.export.folder import replaced
from translator.search.forced import rate
from translator.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, train_tokenizer
from translator.translate import Translator

SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))
GREEDY = search_config(beam_size=1, max_length_ratio=0, max_length_extra=20)
BEAM = search_config(beam_size=5, length_penalty=0.8, length_penalty_form="power", max_length_ratio=0, max_length_extra=30)
NEVER = [["<pad>"], ["<unk>"], ["<s>"]]

CTRANSLATE2 = [
    {}, {"norm": "post"}, {"activation": "gelu"}, {"activation": "swiglu", "norm": "post"}, {"tied": "target"}, {"tied": "none"},
    {"positions": "learned", "max_positions": 70}, {"positions": "rotary"}, {"positions": "relative"},
    {"positions": "rotary", "norm": "post", "activation": "swiglu", "encoder_layers": 1, "decoder_layers": 3}]
HUGGINGFACE = [
    {}, {"norm": "post"}, {"activation": "gelu"}, {"tied": "target"}, {"tied": "none"}, {"norm": "post", "tied": "target"},
    {"norm": "post", "tied": "none", "activation": "gelu"}, {"positions": "learned", "max_positions": 70},
    {"positions": "learned", "tied": "none", "encoder_layers": 1, "decoder_layers": 3}]


def named(changes: dict[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items()) or "plain"


@pytest.fixture(scope="module")
def separate() -> tuple[Tokenizer, Tokenizer]:
    return (train_tokenizer(SOURCES, tokenizer_config(vocab_size=290, model_type="bpe")),
            train_tokenizer(TARGETS, tokenizer_config(vocab_size=300)))


@pytest.fixture
def translator(request, tokenizer, separate) -> Translator:
    """With random weights; where its vocabularies need not be one, they are two."""
    tokenizers = (tokenizer, tokenizer) if request.param.get("tied", "all") == "all" else separate
    model = random_model(model_config(**request.param), vocab=tuple(map(len, tokenizers)))
    return Translator.of(model, *tokenizers, search=GREEDY)


def ours(translator: Translator, search: SearchConfig) -> list[list[int]]:
    return [list(t.hypotheses[0].ids) for t in translator.translate(SOURCES, search)]


def our_log_probabilities(translator: Translator, sources: list[list[int]], targets: list[list[int]]) -> list[torch.Tensor]:
    return [torch.tensor(r.log_probabilities) for r in rate([translator.models[0]], sources, targets, torch.device("cpu"))]


# CTranslate2


def in_ctranslate2(translator: Translator, folder: Path) -> ctranslate2.Translator:
    folder.mkdir()
    to_ctranslate2.write(translator, Decoding.nearest(GREEDY, translator.models[0].config, None), folder, "float32")
    return ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


@pytest.mark.parametrize("translator", CTRANSLATE2, ids=named, indirect=True)
def test_ctranslate2_computes_the_same(translator, tmp_path):
    theirs = in_ctranslate2(translator, tmp_path / "export")
    source, target = translator.source_tokenizer, translator.target_tokenizer
    pieces = [source.pieces(ids[:-1]) for ids in source.encode(SOURCES)]

    targets = target.encode(TARGETS)
    expected = our_log_probabilities(translator, source.encode(SOURCES), targets)
    scored = theirs.score_batch(pieces, [target.pieces(ids[:-1]) for ids in targets])
    for log_probabilities, result in zip(expected, scored, strict=True):
        torch.testing.assert_close(torch.tensor(result.log_probs), log_probabilities, atol=1e-4, rtol=0)

    results = theirs.translate_batch(pieces, beam_size=1, min_decoding_length=0, max_decoding_length=20, suppress_sequences=NEVER)
    assert [r.hypotheses[0] for r in results] == [target.pieces(ids) for ids in ours(translator, GREEDY)]


# transformers


def in_transformers(translator: Translator, folder: Path) -> tuple[object, object]:
    folder.mkdir()
    to_huggingface.write(translator, Decoding.nearest(GREEDY, translator.models[0].config, None), folder)
    model, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("translator", HUGGINGFACE, ids=named, indirect=True)
def test_transformers_computes_the_same(translator, tmp_path):
    model, their_tokenizer = in_transformers(translator, tmp_path / "export")
    batch = their_tokenizer(SOURCES, return_tensors="pt", padding=True)

    targets = translator.target_tokenizer.encode(TARGETS)
    decoder_inputs = pad([[BOS_ID, *ids[:-1]] for ids in targets])
    with torch.inference_mode():
        log_probabilities = model(**batch, decoder_input_ids=decoder_inputs).logits.log_softmax(dim=-1)
    for ids, row, expected in zip(targets, log_probabilities, our_log_probabilities(
            translator, translator.source_tokenizer.encode(SOURCES), targets), strict=True):
        torch.testing.assert_close(row[range(len(ids)), ids], expected, atol=1e-4, rtol=0)

    outputs = model.generate(**batch, max_new_tokens=21)
    assert [without_markers(row) for row in outputs.tolist()] == ours(translator, GREEDY)


def without_markers(ids: list[int]) -> list[int]:
    return [i for i in ids if i not in (PAD_ID, BOS_ID, EOS_ID)]
