"""Texts of several sentences, sentences without an end, words alone: nothing of them is lost in silence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.support.configurations import search_config
from tests.support.corpora import PAIRS
from translator.inference.line_formats import Line, format_answer
from translator.inference.planning import TrainingStatistics
from translator.inference.ranking import lost_numbers, short_output
from translator.inference.trained_model import TrainedModel
from translator.inference.translation import Given, Request
from translator.inference.translator import Translator
from translator.text.tokenizer import EOS_ID

SOURCES = [source for source, _ in PAIRS[:12]]
QUICK = search_config(beam_size=4, max_length_ratio=0.5, max_length_extra=6)


@pytest.fixture
def translator(trained_folder) -> Translator:
    return Translator(trained_folder, device="cpu")


def options(**changes: object):
    return dataclasses.replace(QUICK, **changes)


def test_sentences_of_a_line_are_translated_one_by_one(translator):
    together, alone = translator.translate([" ".join(SOURCES[:3]), SOURCES[0]], QUICK)
    assert (together.sentences, alone.sentences) == (3, 1)
    assert together.text == " ".join(translator(SOURCES[:3], QUICK))
    [whole] = translator.translate([" ".join(SOURCES[:3])], options(split_sentences="never"))
    assert whole.sentences == 1
    first, second, _ = (text.split() for text in translator(SOURCES[:3], QUICK))
    meeting = options(banned=(f"{first[-1]} {second[0]}",), n_best=3)
    bound, free = translator.translate([" ".join(SOURCES[:3]), SOURCES[0]], meeting)
    assert "where two of them meet" in bound.refused
    assert free.text == " ".join(first)


def test_sentences_are_spaced_as_in_the_text(translator):
    [first, second, third] = translator(SOURCES[:3], QUICK)
    text = f"{SOURCES[0]}  {SOURCES[1]}\n\n{SOURCES[2]}\n"
    [translation] = translator.translate([text], QUICK)
    assert translation.text == f"{first}  {second}\n\n{third}"
    line = format_answer(Line(Request(text)), translation, None, "text").decode()
    assert line == f"{first}  {second}  {third}\n"
    [details] = translator.details([text], [Given(translation.text, translator.details_of([translation])[0].pieces)], QUICK)
    assert details == translator.details_of([translation])[0]


def test_sentences_of_a_line_keep_n_best_lists_and_details(translator):
    several = options(n_best=3)
    [together], apart = translator.translate([" ".join(SOURCES[:3])], several), translator.translate(SOURCES[:3], several)
    assert together.texts == tuple(" ".join(texts) for texts in zip(*(one.texts for one in apart), strict=True))
    assert [h.log_probability for h in together.hypotheses] == pytest.approx(
        [sum(one.hypotheses[rank].log_probability for one in apart) for rank in range(3)], abs=1e-4)
    [told], of_each = translator.details_of([together]), translator.details_of(apart)
    assert told.pieces == sum((details.pieces for details in of_each), ())
    assert told.log_probabilities == pytest.approx(sum((details.log_probabilities for details in of_each), ()), abs=1e-4)
    assert [target for _, target in told.alignment] == list(range(len(together.text.split())))
    assert told.alignment[-1] == tuple(
        last + sum(len(text.split()) for text in texts)
        for last, texts in zip(of_each[2].alignment[-1], (SOURCES[:2], [one.text for one in apart[:2]]), strict=True))


def trained_on(folder: Path, **statistics: float | None) -> Translator:
    trained = TrainedModel.load(folder, device="cpu")
    return Translator(dataclasses.replace(trained, statistics=TrainingStatistics(**statistics)))


@pytest.mark.parametrize(("share", "longest", "choice", "count"), [
    (None, None, "auto", 3), (0.49, 99, "auto", 3), (0.5, 99, "auto", 1), (0.5, 20, "auto", 3), (0.5, 99, "always", 3),
    (None, 20, "never", 1)])
def test_auto_splits_what_training_has_not_shown(trained_folder, share, longest, choice, count):
    translator = trained_on(trained_folder, longest_source=longest, several_sentences=share)
    [translation] = translator.translate([" ".join(SOURCES[:3])], options(split_sentences=choice))
    assert translation.sentences == count


def test_a_sentence_without_an_end_is_translated_in_parts(trained_folder):
    translator = trained_on(trained_folder, longest_source=99, long_source=12)
    endless = " ".join(source.removesuffix(".") for source in SOURCES)
    [translation] = translator.translate([endless], QUICK)
    assert translation.sentences >= 4
    assert max(len(source) for source, _ in translation.pairs) <= 24
    assert len(translation.text.split()) > len(endless.split()) / 2
    [in_position] = translator.translate([endless], options(max_source_tokens=9))
    assert max(len(source) for source, _ in in_position.pairs) <= 9


def test_a_prefix_is_shared_out_among_sentences(translator):
    prefix = "Der Hund sieht drei Bäume. Sie will"
    [translation] = translator.translate([Request(" ".join(SOURCES[:3]), prefix=prefix)], QUICK)
    own = [Request(SOURCES[0], prefix="Der Hund sieht drei Bäume."), Request(SOURCES[1], prefix="Sie will"), SOURCES[2]]
    assert translation.text == " ".join(one.text for one in translator.translate(own, QUICK))
    [whole] = translator.translate([Request(SOURCES[0], prefix=prefix)], options(max_length_extra=40))
    assert whole.text.startswith(prefix)


def test_required_phrases_keep_sentences_together_and_say_so(translator):
    [translation] = translator.translate([Request(" ".join(SOURCES[:3]), required=("Häuser",))], QUICK)
    assert translation.sentences == 1
    assert "required phrases keep 3 sentences together" in " ".join(translation.warnings)


# What never comes back empty


def test_a_word_never_comes_back_empty(translator, monkeypatch):
    """Even by a model that would rather end at once; where that is allowed, the line is refused."""
    [model] = translator.models
    log_probabilities = model.log_probabilities

    def ending(*args: object) -> torch.Tensor:
        return log_probabilities(*args).index_fill(1, torch.tensor(EOS_ID), 0.0)

    monkeypatch.setattr(model, "log_probabilities", ending)
    for beam_size in (1, 4):
        words = translator.translate(["houses", "two trees.", "She"], options(beam_size=beam_size))
        assert any(word.text for word in words)
        assert all(word.text or word.refused for word in words)
        empty, blank = translator.translate(["house", " "], options(beam_size=beam_size, min_length=0))
        assert empty.refused == "the model finds only an empty translation; not translated"
        assert (blank.text, blank.refused) == ("", "")


# What is said of a translation that lacks something


@pytest.mark.parametrize(("source", "output", "lost"), [
    ("It costs $25.50.", "Es kostet zwei505.5.", "25.50"), ("It costs $25.50.", "Es kostet 25,50 Dollar.", ""),
    ("10,000 yen in 1970", "10.000 Yen 1977", "1970"), ("2 of 3", "zwei von drei", ""), ("12 and 12", "12", "12"),
    ("no", "5", "")])
def test_numbers_lost_are_named(source, output, lost):
    assert lost_numbers(source, output) == (f"numbers that the translation lacks: {lost}" if lost else "")


def test_an_output_far_shorter_than_its_source_is_said():
    assert "18 tokens for 241" in short_output(241, 18, 1.1)
    assert not any((short_output(241, 18, 0.1), short_output(9, 2, 1.1), short_output(10, 5, 1.1), short_output(241, 18, 0.0)))


def test_warnings_are_said_by_line(script, trained_folder):
    result = script("translate", f"run={trained_folder}", "device=cpu", stdin=b"She sees two houses.\nShe sees 1970 houses.\n")
    assert result.returncode == 0
    warned = [line for line in result.stderr.decode().splitlines() if "longest length" not in line]
    assert warned == ["line 2: numbers that the translation lacks: 1970"]
