"""Noise in training follows from seed, epoch and row, keeps its shares, and changes both sides where it must."""

from __future__ import annotations

import dataclasses
from random import Random

import numpy as np
import pytest
import torch
from datasets import Dataset

from tests.support.configurations import tokenizer_config
from tests.support.corpora import PAIRS
from translator.config.augmentation import AugmentConfig
from translator.data.augmentation import KINDS, Augmenter
from translator.data.batching import BatchSource
from translator.runtime.errors import UserError
from translator.text.placeholders import numbers_in
from translator.text.tokenizer import Tokenizer, train_tokenizer

ALL = AugmentConfig(numbers=0.1, placeholders=0.2, no_stop=0.3, upper=0.1, title=0.2, lower=0.3, typos=0.2)
ANNA = ("Anna has 25 cups in Bonn.", "In Bonn hat Anna 25 Tassen.")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer((text for pair in PAIRS for text in pair), tokenizer_config(placeholders=9))


def source_of(
    tokenizer: Tokenizer, augment: AugmentConfig = ALL, *, max_tokens: int = 400, sampling: float = 0.0
) -> BatchSource:
    source, target = (tokenizer.encode(side) for side in zip(*PAIRS, strict=True))
    rows = Dataset.from_dict({
        "source": [s for s, _ in PAIRS], "target": [t for _, t in PAIRS], "source_ids": source, "target_ids": target,
        "source_length": list(map(len, source)), "target_length": list(map(len, target))})
    return BatchSource(rows, (tokenizer, tokenizer), max_tokens=max_tokens, seed=1, sampling=sampling, augment=augment)


def changed(kind: str, source: str, target: str, tokenizer: Tokenizer, row: int = 0) -> tuple[str, str]:
    augmenter = Augmenter(AugmentConfig(**{kind: 1.0}), 1, (tokenizer, tokenizer))
    return augmenter.change(source, target, np.array([True]), epoch=0, row=row)


def texts(source: BatchSource, epoch: int) -> dict[int, tuple[str, str]]:
    found = {}
    for number, rows in enumerate(source.plan(epoch)):
        batch = source.batch(epoch, number)
        sides = (source.tokenizers[0].decode(side.tolist()) for side in (batch.source, batch.target_out))
        found |= dict(zip(rows.tolist(), zip(*sides, strict=True), strict=True))
    return found


def test_pairs_do_not_depend_on_batches_but_on_epochs(tokenizer):
    small, large, later = (
        texts(source_of(tokenizer, max_tokens=tokens), epoch) for tokens, epoch in ((400, 1), (2000, 1), (2000, 2)))
    assert small == large
    assert all(sum(found[row] != pair for row, pair in enumerate(PAIRS)) > 80 for found in (large, later))
    assert sum(large[row] != later[row] for row in large) > 80


def test_draws_do_not_depend_on_rows_behind_and_other_kinds(tokenizer):
    everything, one = Augmenter(ALL, 1, (tokenizer, tokenizer)), AugmentConfig(typos=ALL.typos)
    digits = np.arange(1000) % 7 == 0
    drawn, alone = everything.draw(3, digits), Augmenter(one, 1, (tokenizer, tokenizer)).draw(3, digits)
    assert np.array_equal(drawn[:, :500], everything.draw(3, digits[:500]))
    assert np.array_equal(drawn[everything.kinds.index("typos")], alone[0])


def test_each_kind_gets_its_share_and_cases_exclude_each_other(tokenizer):
    augmenter = Augmenter(ALL, 1, (tokenizer, tokenizer))
    drawn = np.concatenate([augmenter.draw(epoch, np.zeros(2000, bool)) for epoch in range(10)], axis=1)
    assert drawn.mean(axis=1) == pytest.approx([getattr(ALL, kind) for kind in augmenter.kinds], abs=0.015)
    assert drawn[[augmenter.kinds.index(kind) for kind in ("upper", "title", "lower")]].sum(axis=0).max() == 1


def test_numbers_and_placeholders_get_half_the_pairs_with_digits(tokenizer):
    augmenter = Augmenter(ALL, 1, (tokenizer, tokenizer))
    drawn = augmenter.draw(0, np.ones(5000, bool)).mean(axis=1)
    expected = [0.5 if kind in ("numbers", "placeholders") else getattr(ALL, kind) for kind in augmenter.kinds]
    assert drawn == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_without_a_drawn_pair_batches_are_those_without_noise(tokenizer, sampling):
    plain, noisy = (source_of(tokenizer, AugmentConfig(lower=share), sampling=sampling) for share in (0.0, 1e-12))
    for number in range(len(plain.plan(0))):
        one, other = plain.batch(0, number), noisy.batch(0, number)
        assert torch.equal(one.source, other.source)
        assert torch.equal(one.target_in, other.target_in)
        assert torch.equal(one.target_out, other.target_out)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_changed_batches_keep_the_budget(tokenizer, sampling):
    source = source_of(tokenizer, dataclasses.replace(ALL, upper=0.5), sampling=sampling)
    for number, rows in enumerate(source.plan(0)):
        batch = source.batch(0, number)
        assert max(batch.source.numel(), batch.target_out.numel()) <= 400
        assert len(batch.source) == len(batch.target_out) == len(rows)
        assert (batch.source[:, -1] != 0).any()  # padded to the longest only


@pytest.mark.parametrize(("kind", "source", "target"), [
    ("upper", "ANNA HAS 25 CUPS IN BONN.", "IN BONN HAT ANNA 25 TASSEN."),
    ("title", "Anna Has 25 Cups In Bonn.", ANNA[1]), ("lower", "anna has 25 cups in bonn.", ANNA[1]),
    ("no_stop", ANNA[0][:-1], ANNA[1][:-1])])
def test_a_kind_changes_the_sides_it_must(tokenizer, kind, source, target):
    assert changed(kind, *ANNA, tokenizer) == (source, target)
    assert changed(kind, ">>de<< " + ANNA[0], ANNA[1], tokenizer) == (">>de<< " + source, target)


@pytest.mark.parametrize(("kind", "source", "target"), [
    *((kind, "猫がいる。", "แมว") for kind in ("upper", "title", "lower")),  # neither has case
    ("no_stop", "A cat", "Eine Katze."), ("no_stop", "...", "Eine Katze."), ("typos", "See x@example.org at 10:30.", "Hier.")])
def test_what_a_kind_does_not_concern_stays(tokenizer, kind, source, target):
    assert changed(kind, source, target, tokenizer) == (source, target)


def test_typing_errors_are_in_some_words_of_the_source(tokenizer):
    for row in range(50):
        source, target = changed("typos", "My sister often visits www.example.org.", "Meine Schwester.", tokenizer, row)
        words = source.split()
        assert target == "Meine Schwester."
        assert (words[0], words[-1]) == ("My", "www.example.org.")
        assert [words[1], words[2], words[3]] != ["sister", "often", "visits"]
        assert all(map(str.isalpha, words[:-1]))


def test_numbers_become_the_same_on_both_sides(tokenizer):
    seen = set()
    for row in range(50):
        source, target = changed("numbers", "I paid $1,250.50 in 1999.", "Ich zahlte 1999 noch 1.250,50 $.", tokenizer, row)
        price, year = source.split()[2], source.split()[-1][:-1]
        assert target == f"Ich zahlte {year} noch {price[1:].translate(str.maketrans(',.', '.,'))} $."
        seen.add((price, year))
    assert len(seen) == 50


def test_a_pair_without_numbers_gets_one_at_the_same_place(tokenizer):
    found = {changed("numbers", "Anna left.", "Anna ging.", tokenizer, row) for row in range(100)}
    digits = {tuple("".join(filter(str.isdigit, side)) for side in pair) for pair in found}
    assert all(one == other and one for one, other in digits)
    assert any(source.endswith("left.") and "Anna" not in source and "Anna" not in target for source, target in found)


def test_placeholders_mask_what_both_sides_keep(tokenizer):
    for row in range(20):
        pair = "Ask x@example.org, 1,500 times!", "1.500 Mal x@example.org fragen!"
        source, target = changed("placeholders", *pair, tokenizer, row)
        one, other = numbers_in(source)
        assert one < other
        assert (source, target) == (f"Ask ⟦{one}⟧, ⟦{other}⟧ times!", f"⟦{other}⟧ Mal ⟦{one}⟧ fragen!")


def test_placeholders_are_put_in_at_places_of_both_sides(tokenizer):
    used = set()
    for row in range(100):
        source, target = changed("placeholders", "Anna left.", "Anna ging.", tokenizer, row)
        numbers = numbers_in(source)
        assert numbers == sorted(set(numbers_in(target)))
        assert numbers == sorted(numbers)
        assert source.replace("left", "ging") == target
        used.update(numbers)
    assert used == set(range(1, 10))


def test_placeholders_need_pieces_of_both_vocabularies(tokenizer):
    few, none = (train_tokenizer((text for pair in PAIRS for text in pair), tokenizer_config(placeholders=n)) for n in (2, 0))
    assert Augmenter(AugmentConfig(placeholders=0.5), 1, (tokenizer, none)).kinds == ()
    used = {number for row in range(50) for number in numbers_in(changed("placeholders", *PAIRS[0], few, row)[0])}
    assert used == {1, 2}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("text", ["", " ", ".", "a", "⟦1⟧", "7", "猫", "ab cd\u0301 שלום", "a1b2 3.4.5"])
def test_any_text_survives_each_kind(kind, text):
    for row in range(5):
        source, target = KINDS[kind]((text, text), Random(row))
        assert bool(source.strip()) >= bool(text.strip())
        assert bool(target.strip()) >= bool(text.strip())


def test_shares_of_cases_above_one_are_refused():
    with pytest.raises(UserError, match=r"data\.augment\.upper"):
        AugmentConfig(upper=0.5, title=0.3, lower=0.3)
