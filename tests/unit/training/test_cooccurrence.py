"""Pieces that stand in the same pairs begin alike, and nothing else about a fresh model changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from datasets import Dataset

from tests.support.configurations import model_config, tokenizer_config
from translator.data.preparation import Corpus
from translator.model.transformer import Transformer
from translator.model.weights import weights_of
from translator.text.tokenizer import WORD_START, Tokenizer, narrow_target, train_tokenizer
from translator.training import cooccurrence
from translator.training.cooccurrence import embed_by_cooccurrence

NAMES, VERBS, THINGS = (
    {"Ada": "Ada", "Ben": "Ben", "Cleo": "Cleo", "Dan": "Dan"}, {"sees": "sieht", "wants": "will", "paints": "malt"},
    {"houses": "Häuser", "trees": "Bäume", "dogs": "Hunde", "lamps": "Lampen"})
PAIRS = [
    (" ".join(words), " ".join(table[word] for table, word in zip((NAMES, VERBS, THINGS), words, strict=True)))
    for words in itertools.product(NAMES, VERBS, THINGS)]


def tokenizer_of(*texts: str) -> Tokenizer:
    return train_tokenizer(texts * 3, tokenizer_config(vocab_size=110, byte_fallback=False, model_type="bpe"))


def narrow_tokenizers(sources: Sequence[str], targets: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
    words = sorted({word for text in (*sources, *targets) for word in text.split()})
    joint = train_tokenizer([*sources, *targets], tokenizer_config(vocab_size=23, byte_fallback=False), words)
    return narrow_target(joint, targets)


def corpus_of(joint: bool | Literal["narrow"]) -> Corpus:
    sources, targets = zip(*PAIRS, strict=True)
    source = tokenizer_of(*sources, *targets) if joint else tokenizer_of(*sources)
    target = source if joint else tokenizer_of(*targets)
    if joint == "narrow":
        source, target = narrow_tokenizers(sources, targets)
        assert len(target) < len(source)
    rows = Dataset.from_dict({"source_ids": source.encode(sources), "target_ids": target.encode(targets)})
    return Corpus(rows, rows, rows, source, target, {})


def model_of(corpus: Corpus, tied: str = "all") -> Transformer:
    torch.manual_seed(3)
    return Transformer(model_config(tied=tied), len(corpus.source_tokenizer), len(corpus.target_tokenizer))


def embedding(table: torch.Tensor, tokenizer: Tokenizer, word: str) -> torch.Tensor:
    ids = tokenizer.encode([word])[0][:-1]
    return table[[i for i, piece in zip(ids, tokenizer.pieces(ids), strict=True) if piece != WORD_START]].mean(dim=0)


@pytest.mark.parametrize(("joint", "tied"), [
    (True, "all"), (True, "none"), (False, "target"), (False, "none"), ("narrow", "all"), ("narrow", "target")])
def test_a_word_is_nearest_to_its_own_translation(joint, tied):
    corpus = corpus_of(joint)
    model = model_of(corpus, tied)
    embed_by_cooccurrence(model, corpus, seed=1)
    for table in (model.target_embedding.tokens.weight, model.output.weight):
        rendered = {
            target: embedding(table, corpus.target_tokenizer, target) for words in (VERBS, THINGS) for target in words.values()}
        for source, target in (VERBS | THINGS).items():
            ours = embedding(model.source_embedding.tokens.weight, corpus.source_tokenizer, source)
            assert target == max(rendered, key=lambda word: torch.cosine_similarity(ours, rendered[word], dim=0)), source


def test_nothing_else_changes_and_the_size_stays():
    corpus = corpus_of(joint=True)
    before, model = model_of(corpus), model_of(corpus)
    embed_by_cooccurrence(model, corpus, seed=1)
    old, new = weights_of(before), weights_of(model)
    changed = [name for name in old if not torch.equal(old[name], new[name])]
    assert [old[name].shape for name in changed] == [(len(corpus.source_tokenizer), model.config.d_model)]
    assert float(new[changed[0]].norm()) == pytest.approx(float(old[changed[0]].norm()), rel=0.1)
    used = itertools.chain.from_iterable([*corpus.train["source_ids"], *corpus.train["target_ids"]])
    alone = set(range(len(corpus.source_tokenizer))) - set(used)
    assert alone
    assert torch.equal(old[changed[0]][list(alone)], new[changed[0]][list(alone)])


def test_embeddings_follow_from_the_seed_and_the_pairs(monkeypatch):
    corpus = corpus_of(joint=True)

    def made(seed: int) -> torch.Tensor:
        model = model_of(corpus)
        torch.manual_seed(seed + 7)  # what was drawn before is of no account
        embed_by_cooccurrence(model, corpus, seed)
        return model.output.weight

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))
    monkeypatch.setattr(cooccurrence, "READ_PAIRS", 5)
    monkeypatch.setattr(cooccurrence, "MOST_COUNTED", 100)
    assert not torch.equal(made(1), model_of(corpus).output.weight)  # of a sample
