"""A narrow target vocabulary changes nothing but what it costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import model_config, run_config, search_config, tokenizer_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import random_model
from tests.support.table_models import search
from translator.model.transformer import Transformer
from translator.pretrained import load_pretrained
from translator.text.tokenizer import EOS_ID, UNK_ID, Tokenizer, is_narrow, narrow_target, train_tokenizer

SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))
TAGS = (">>de<<", ">>en<<")


@pytest.fixture(scope="module", params=[{}, {"byte_fallback": False, "vocab_size": 69}], ids=["bytes", "no bytes"])
def joint(request) -> Tokenizer:
    return train_tokenizer(SOURCES + TARGETS, tokenizer_config(**request.param), TAGS)


@pytest.fixture(scope="module")
def narrowed(joint) -> tuple[Tokenizer, Tokenizer]:
    return narrow_target(joint, iter(TARGETS))


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.pieces(tokenizer.encode([text])[0])


def test_target_pieces_come_first_in_a_narrow_vocabulary(joint, narrowed):
    source, target = narrowed
    assert is_narrow(source, target)
    assert sorted(source.pieces(range(len(source)))) == sorted(joint.pieces(range(len(joint))))
    used = {piece for text in TARGETS for piece in spelled(joint, text)}
    of_target, of_source = (set(t.pieces(range(len(t)))) for t in (target, source))
    assert used <= of_target
    left_out = of_source - of_target
    assert left_out >= set(TAGS)
    assert any(piece in left_out for text in SOURCES for piece in spelled(joint, text))
    assert source.tags == TAGS
    assert target.tags == ()


def test_pieces_that_targets_use_often_stand_before_rare_ones(joint, narrowed):
    target = narrowed[1]
    used = Counter(piece for text in TARGETS for piece in spelled(joint, text))
    counts = [used[piece] for piece in target.pieces(range(len(target)))[EOS_ID + 1 :]]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 5


def test_both_segment_as_the_joint_one_did(joint, narrowed):
    source, target = narrowed

    @given(st.text(max_size=40))
    def same(text: str) -> None:
        assert spelled(source, text) == spelled(joint, text)

    same()
    for text in TARGETS:
        assert spelled(target, text) == spelled(joint, text)
        assert source.encode([text]) == target.encode([text])  # the ids are the same


def test_what_the_joint_one_can_spell_the_target_can(joint, narrowed):
    target = narrowed[1]

    @given(st.text(max_size=40) | st.sampled_from(SOURCES))
    def spells(text: str) -> None:
        whole, narrow = (t.encode([text]) for t in (joint, target))
        if UNK_ID not in whole[0]:
            assert UNK_ID not in narrow[0]
            assert target.decode(narrow) == joint.decode(whole)

    spells()


def test_two_vocabularies_of_their_own_are_not_taken_for_one(narrowed):
    source, target = narrowed
    other = train_tokenizer(TARGETS, tokenizer_config(vocab_size=300))
    assert not is_narrow(source, other)
    assert not is_narrow(other, source)
    assert not is_narrow(target, source)
    assert is_narrow(other, other)
    assert not is_narrow(other, Tokenizer(other.model))


@pytest.mark.parametrize("tied", ["all", "target", "none"])
def test_narrow_model_matches_the_full_one_on_its_pieces(tied):
    whole, narrow = random_model(model_config(tied=tied), vocab=(60, 60)), Transformer(model_config(tied=tied), 60, 40).eval()
    with torch.no_grad():
        for mine, its in zip(narrow.parameters(), whole.parameters(), strict=True):
            mine.copy_(its[: len(mine)])
    source, target = torch.randint(4, 60, (3, 7)), torch.randint(4, 40, (3, 5))
    assert narrow(source, target).shape == (3, 5, 40)
    torch.testing.assert_close(narrow(source, target), whole(source, target)[..., :40])
    again = narrow(source, target)
    torch.testing.assert_close(narrow.for_decoding()(source, target), again, rtol=0, atol=0)
    found = search(narrow, source, search_config(n_best=3))
    assert all(max(hypothesis.ids, default=0) < 40 for hypotheses in found for hypothesis in hypotheses)


def test_partly_tied_table_learns_from_both_sides():
    model = Transformer(model_config(tied="all"), 60, 40)
    model(torch.tensor([[50, 3]]), torch.tensor([[2, 10]])).square().sum().backward()
    gradient = model.source_embedding.tokens.weight.grad
    assert gradient[50].any()  # as a source
    assert gradient[:40].any(dim=1).all()  # as outputs
    assert not gradient[[*range(40, 50), *range(51, 60)]].any()


def test_a_run_trained_with_one_translates(script, tmp_path, capsys):
    """Its folder has two tokenizers, and by default the target's is the smaller."""
    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = [
        "data=files", f"data.train={pairs}", f"data.cache={tmp_path / 'cache'}", f"runs={tmp_path}", "tokenizer.vocab_size=320",
        "model=tiny", "train.max_updates=2", "train.max_minutes=null", "data.holdout=4", "device=cpu"]
    trained = script("train", *options, "name=narrow")
    assert trained.returncode == 0, trained.stderr.decode()
    sizes = [len(Tokenizer.load(Path(tmp_path, "narrow", f"tokenizer.{side}.model"))) for side in ("source", "target")]
    assert sizes[0] == 320 > sizes[1]
    assert (tmp_path / "narrow" / "calibration.json").is_file()
    for precision in ("fp32", "bf16", "int8"):
        translated = script(
            "translate", f"run={tmp_path / 'narrow'}", f"precision={precision}", "search.max_length=5", stdin=b"She sees it.\n")
        assert translated.returncode == 0, translated.stderr.decode()
    for target, told in (("fr", True), ("de", False)):
        load_pretrained(str(tmp_path / "narrow"), run_config("init=x", f"data.target={target}"))
        assert ("warning" in capsys.readouterr().err) == told
    wide = script("train", *options, "name=wide", "tokenizer.narrow_target=false")
    assert wide.returncode == 0, wide.stderr.decode()
    assert (tmp_path / "wide" / "tokenizer.model").is_file()
    refused = script("train", *options, "name=wide")
    assert refused.returncode == 2
    assert b"tokenizer.narrow_target=True" in refused.stderr
