"""Text as people write it, from the line to the answer: search.robust keeps what it must with any model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import search_config, tokenizer_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from translator.inference.trained_model import TrainedModel
from translator.inference.translation import Given, Request
from translator.inference.translator import Translator
from translator.search import Hypothesis
from translator.serve.service import explain
from translator.text.placeholders import find_spans
from translator.text.tokenizer import Tokenizer, train_tokenizer

TOKENIZER = train_tokenizer([text for pair in PAIRS for text in pair] * 2, tokenizer_config(placeholders=9, vocab_size=420))
RESERVED = set(TOKENIZER.ids_of(TOKENIZER.placeholders))
ROBUST = search_config(robust=True, beam_size=2, max_length_ratio=1.0, max_length_extra=4)
TEXT = st.lists(st.sampled_from(
    ["She sees two trees", "HE WANTS BOOKS", "- ", "“", "”", "(", ")", "! ", ". ", " ", "😀", "%s", "me@x.de", "⟦4⟧", "1,000",
     " 东 "]), max_size=8).map("".join)


@pytest.fixture(scope="module")
def translator() -> Translator:
    model = random_model(vocab=len(TOKENIZER))
    return Translator(TrainedModel(model, TOKENIZER, TOKENIZER, search=ROBUST))


def outputs(translator: Translator, monkeypatch, *answers: Callable[[list[int]], list[int]]) -> list[bool]:
    """Let each search answer with the source's ids, changed by the next of `answers`; return which required placeholders."""
    required: list[bool] = []

    def search(units, options, banned=(), *, placeholders=False):
        answer = answers[min(len(required), len(answers) - 1)]
        required.append(placeholders)
        return [[Hypothesis(tuple(answer(unit.ids[:-1])), -1.0, -1.0, False)] for unit in units]

    monkeypatch.setattr(translator._find, "search", search)
    return required


def without(ids: list[int]) -> list[int]:
    return [i for i in ids if i not in RESERVED]


def twice(ids: list[int]) -> list[int]:
    return [*ids, *ids]


def test_a_model_that_copies_gives_back_every_text(translator, monkeypatch):
    outputs(translator, monkeypatch, lambda ids: ids)

    @given(TEXT)
    def comes_back(text: str) -> None:
        [translation] = translator.translate([text])
        assert not translation.refused
        for start, end in find_spans(text):
            assert text[start:end] in translation.text
        assert translation.text.replace(" ", "").lower() == text.replace(" ", "").lower()

    comes_back()


@pytest.mark.parametrize(("answers", "required"), [
    ([list], [False]), ([without, list], [False, True]), ([twice, list], [False, True]),
    ([without, twice, list], [False, True, False]), ([without, without, list], [False, True, False])])
def test_an_output_that_lacks_a_placeholder_is_searched_again(translator, monkeypatch, answers, required):
    assert outputs(translator, monkeypatch, *answers) == []
    searched = outputs(translator, monkeypatch, *answers)
    [translation] = translator.translate(["She sees me@x.de and %s."])
    assert translation.text == "She sees me@x.de and %s."
    assert searched == required


def test_a_placeholder_that_no_source_has_is_banned(translator, monkeypatch):
    sentence, stray = "She sees two trees.", TOKENIZER.ids_of(["⟦3⟧"])
    banned: list[list[tuple[int, ...]]] = []

    def search(units, options, of_call=(), *, placeholders=False):
        banned.append(list(of_call))
        return [[Hypothesis((*unit.ids[:-1], *([] if of_call else stray)), -1.0, -1.0, False)] for unit in units]

    monkeypatch.setattr(translator._find, "search", search)
    for robust in (True, False):
        banned.clear()
        [translation] = translator.translate([sentence], dataclasses.replace(ROBUST, robust=robust))
        assert translation.text == sentence
        assert [len(of_call) for of_call in banned] == [0, 9]


@pytest.mark.parametrize("options", [
    {}, {"beam_size": 1}, {"sampling": True}, {"groups": 2, "beam_size": 4}, {"keep_places": True}, {"n_best": 2},
    {"mbr": "chrf"}], ids=str)
def test_the_search_of_any_model_keeps_each_part_once(translator, options):
    search = dataclasses.replace(ROBUST, **options)
    [translation] = translator.translate(["- He wrote to me@x.de, and %s 😀 books!!!"], search)
    for text in translation.texts:
        assert text.startswith("- ")
        assert text.endswith("!!!")
        assert [text.count(part) for part in ("me@x.de", "%s", "😀")] == [1, 1, 1]


def test_plain_text_is_translated_as_without_robust(translator):
    sources = [source for source, _ in PAIRS[::7]]
    plain = dataclasses.replace(ROBUST, robust=False)
    assert translator.translate(sources) == translator.translate(sources, plain)
    vocabulary = Tokenizer(train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config()).model)
    old = Translator(TrainedModel(random_model(vocab=len(vocabulary)), vocabulary, vocabulary, search=ROBUST))
    [translation] = old.translate(["- He wrote to me@x.de."])
    assert translation.text.startswith("- ")


@pytest.mark.parametrize("request_", [
    Request("- She sees %s.", prefix="Sie"), Request("- She sees %s.", required=("Bücher",))], ids=["prefix", "required"])
def test_prefix_and_required_phrases_hold_for_the_whole_output(translator, request_):
    [unit] = translator.plan(request_, ROBUST)
    assert unit.form.is_plain
    [translation] = translator.translate([request_])
    assert translation.text.startswith(request_.prefix or "")
    assert all(phrase in translation.text for phrase in request_.required)


def test_a_banned_phrase_is_not_given_back(translator):
    banned = dataclasses.replace(ROBUST, banned=("me@x.de", "Sie"))
    for translation in translator.translate(["She wrote to me@x.de.", "- me@x.de", "- She sees trees."], banned):
        assert translation.refused or not any(phrase in translation.text for phrase in banned.banned)


def test_own_translations_are_rated_as_they_were_found(translator):
    sources = [
        "- She sees 1,000 trees!!!", "HE WANTS BOOKS", "me@x.de 😀", "She sees many trees. - He paints %s. 😀", "He sees it."]
    translations = translator.translate(sources)
    details = translator.details_of(translations)
    given = [Given(t.text, d.pieces) for t, d in zip(translations, details, strict=True)]
    again = translator.details(sources, given)
    for source, translation, first, second in zip(sources, translations, details, again, strict=True):
        assert first.score == pytest.approx(sum(h.score for h in translation.hypotheses[:1]), abs=1e-4)
        assert second is None or second == first
        if first.alignment:
            words = [len(text.split()) for text in (source, translation.text)]
            assert all(0 <= s < words[0] and 0 <= t < words[1] for s, t in first.alignment)
            assert len({t for _, t in first.alignment}) == len(first.alignment)


def test_an_explanation_spells_the_text_and_its_translation(translator):
    texts = ["- She sees 1,000 trees!!!", "“He wants books” 😀", "me@x.de", "She sees trees."]
    units = [unit for text in texts for unit in translator.plan(Request(text), ROBUST)]
    translations = translator.translate_units(units, ROBUST)
    for text, translation, explained in zip(
            texts, translations, explain(translator, units, translations, ROBUST), strict=True):
        assert "".join(explained["source"]) == text
        best = explained["translations"][0]
        assert best["text"] == translation.text
        assert not best["tokens"] or "".join(token["text"] for token in best["tokens"]).strip() == translation.text
        assert all(len(token["attention"]) == len(explained["source"]) for token in best["tokens"])
