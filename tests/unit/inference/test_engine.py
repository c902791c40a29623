"""CTranslate2 in place of the project's search: the same outputs, of the weights in the folder, and no silent exceptions."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.configurations import composed, model_config, search_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from translator.config.building import from_hydra
from translator.config.commands import TranslateConfig
from translator.inference import ctranslate2, engine
from translator.inference.files import translate_file
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.model.weights import weights_of
from translator.runs.run_folder import ENGINE, RunFolder
from translator.runtime.atomic_files import load_tensors, save_tensors
from translator.runtime.errors import UserError

SOURCES = [source for source, _ in PAIRS[:12]]
GREEDY = search_config(beam_size=1)
PATIENT = search_config(beam_size=4, keep_places=True, patience=1)
BEAM = search_config(beam_size=4)


@pytest.fixture
def run(trained_folder, tmp_path) -> Path:
    return shutil.copytree(trained_folder, tmp_path / "run")


def kept(run: Path) -> list[Path]:
    return list(run.glob(f"{ENGINE}*"))


def no_search(*_: object, **__: object) -> None:
    raise AssertionError("the project's search was called")


@pytest.mark.parametrize(("name", "search"), [("auto", GREEDY), ("auto", PATIENT), ("ctranslate2", BEAM)])
def test_ctranslate2_finds_what_the_own_search_finds(run, monkeypatch, name, search):
    expected = Translator(run, device="cpu").translate(SOURCES, search)
    translator = Translator(run, device="cpu", engine=name)
    monkeypatch.setattr(translator._engine, "own", no_search)
    found = translator.translate(SOURCES, search)
    for ours, theirs in zip(expected, found, strict=True):
        assert dataclasses.replace(theirs, hypotheses=ours.hypotheses) == ours
        [mine], [other] = ours.hypotheses, theirs.hypotheses
        assert other.ids == mine.ids
        assert other.log_probability == pytest.approx(mine.log_probability, abs=1e-3 if search is GREEDY else 0.05)
        assert other.score == pytest.approx(mine.score, abs=1e-3 if search is GREEDY else 0.02)


@pytest.mark.parametrize("changes", [
    {"beam_size": 4}, {"n_best": 2, "beam_size": 4, "keep_places": True, "patience": 1}, {"sampling": True}, {"min_length": 9}])
def test_auto_leaves_other_searches_to_the_own(run, changes):
    translate = Translator(run, device="cpu", engine="auto")
    assert translate(SOURCES, search_config(**changes)) == Translator(run, device="cpu")(SOURCES, search_config(**changes))
    assert not kept(run)


@pytest.mark.parametrize("changes", [{"max_length": 3}, {"max_length_ratio": 0, "max_length_extra": 6}, {"prefix": "Die"}])
def test_what_some_texts_need_is_searched_again(run, changes):
    search = dataclasses.replace(GREEDY, **changes)
    found = Translator(run, device="cpu", engine="auto").translate(SOURCES, search)
    expected = Translator(run, device="cpu").translate(SOURCES, search)
    assert kept(run)
    assert [(one.text, one.hit_limit) for one in found] == [(one.text, one.hit_limit) for one in expected]


@pytest.mark.parametrize(("changes", "word"), [
    ({"sampling": True}, "search.sampling"), ({"n_best": 2}, "search.n_best"), ({"mbr": "chrf"}, "search.mbr"),
    ({"keep_places": True}, "search.patience")])
def test_ctranslate2_refuses_what_it_cannot_express(run, changes, word):
    with pytest.raises(UserError, match=word):
        Translator(run, device="cpu", engine="ctranslate2")(SOURCES, search_config(**changes))


def test_ctranslate2_refuses_models_it_cannot_run(run, tokenizer, monkeypatch):
    for others in ({"precision": "bf16"}, {}):
        runs = [run] if others else [run, run]
        with pytest.raises(UserError, match="engine=ctranslate2: needs one run"):
            Translator(*runs, device="cpu", engine="ctranslate2", **others)(SOURCES, GREEDY)
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="engine=ctranslate2: is not installed"):
        Translator(run, device="cpu", engine="ctranslate2")(SOURCES, GREEDY)
    expected = Translator(run, device="cpu")(SOURCES, GREEDY)
    assert Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY) == expected


def test_auto_leaves_a_model_it_cannot_run(run, tokenizer):
    folder, config = RunFolder(run), model_config(decoder="ssru")
    folder.write_config(dataclasses.replace(folder.load_config(), model=config))
    save_tensors(folder.model_file, weights_of(random_model(config, vocab=len(tokenizer))))
    assert Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY) == Translator(run, device="cpu")(SOURCES, GREEDY)
    with pytest.raises(UserError, match=r"model\.decoder=ssru"):
        Translator(run, device="cpu", engine="ctranslate2")(SOURCES, GREEDY)


def test_a_request_of_its_own_is_searched_by_the_own_search(run):
    requests = [Request(SOURCES[0]), Request(SOURCES[0], required=("Haus",)), Request(SOURCES[0], prefix="Wir")]
    found = Translator(run, device="cpu", engine="ctranslate2").translate(requests, GREEDY)
    assert [one.text for one in found] == [one.text for one in Translator(run, device="cpu").translate(requests, GREEDY)]
    assert "Haus" in found[1].text
    assert found[2].text.startswith("Wir")


def test_greedy_outputs_at_their_limits_have_exact_scores(run, monkeypatch):
    search = dataclasses.replace(GREEDY, max_length_ratio=0.0, max_length_extra=3)
    expected = Translator(run, device="cpu").translate(SOURCES, search)
    translator = Translator(run, device="cpu", engine="auto")
    monkeypatch.setattr(translator._engine, "own", no_search)
    found = translator.translate(SOURCES, search)
    assert any(one.hit_limit for one in expected)
    for [ours], [theirs] in zip((one.hypotheses for one in expected), (one.hypotheses for one in found), strict=True):
        assert theirs == dataclasses.replace(ours, log_probability=theirs.log_probability, score=theirs.score)
        assert theirs.log_probability == pytest.approx(ours.log_probability, abs=1e-3)


@pytest.mark.parametrize("pieces", [["</s>"], ["<unk>", "</s>"]])
def test_outputs_that_the_own_search_rules_out_are_not_taken(run, pieces):
    translator = Translator(run, device="cpu", engine="auto")
    [unit] = translator.plan(Request(SOURCES[0]), GREEDY)
    result = SimpleNamespace(hypotheses=[pieces], scores=[-1.0])
    assert translator._engine._hypotheses(unit, result, 9, GREEDY) == []


def test_short_texts_are_not_decoded_to_the_limits_of_long_ones(run, monkeypatch):
    translator = Translator(run, device="cpu", engine="auto")
    translate_batch, asked = translator._engine._translator.translate_batch, list[tuple[int, int]]()

    def noted(sources: list[list[str]], max_decoding_length: int, **options: object) -> object:
        asked.append((len(sources), max_decoding_length))
        return translate_batch(sources, max_decoding_length=max_decoding_length, **options)

    monkeypatch.setattr(translator._engine, "_translator", SimpleNamespace(translate_batch=noted))
    short, long = SOURCES[0], " ".join([SOURCES[0].rstrip(".")] * 12)
    search = dataclasses.replace(GREEDY, split_sentences="never", max_length_ratio=3.0, max_length_extra=1)
    units = [unit for text in (short, long, short) for unit in translator.plan(Request(text), search)]
    assert all(translator._engine(units, search))
    (_, long_limit), (of_short, short_limit) = asked
    assert (of_short, max(100, 2 * short_limit) < long_limit) == (2, True)


def test_the_kept_model_is_of_the_weights_and_undamaged(run):
    folder = RunFolder(run)
    first = Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY)
    [place] = kept(run)
    before = place.stat().st_ino
    assert Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY) == first
    assert place.stat().st_ino == before

    content = bytearray((place / "model.bin").read_bytes())
    content[-100:] = bytes(100)
    (place / "model.bin").write_bytes(content)
    assert Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY) == first
    assert place.stat().st_ino != before

    weights = load_tensors(folder.model_file).items()
    save_tensors(folder.model_file, {name: tensor.flip(0) if "feed_forward" in name else tensor for name, tensor in weights})
    assert Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY) == Translator(run, device="cpu")(SOURCES, GREEDY)
    [other] = kept(run)
    assert other != place
    assert not list(run.glob(f".{ENGINE}*"))


@pytest.mark.parametrize("written", ["{}", "[]", '{"config.json": "0"}', '{"model.bin": "0"}'])
def test_a_kept_model_without_its_digest_is_written_again(run, written):
    first = Translator(run, device="cpu", engine="auto")(SOURCES[:2], GREEDY)
    [place] = kept(run)
    (place / "sha256.json").write_text(written)
    abandoned = run / f".{ENGINE}0.killed"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    (place / "model.bin").unlink()
    os.mkfifo(place / "model.bin")
    assert Translator(run, device="cpu", engine="auto")(SOURCES[:2], GREEDY) == first
    assert (place / "model.bin").is_file()
    assert not abandoned.exists()


def test_a_run_that_cannot_be_written_is_converted_aside(run, monkeypatch, capsys):
    def read_only(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ctranslate2, "_converted", read_only)
    found = Translator(run, device="cpu", engine="auto")(SOURCES, GREEDY)
    assert found == Translator(run, device="cpu")(SOURCES, GREEDY)
    assert not kept(run)
    assert "Permission denied" in capsys.readouterr().err


def test_the_command_takes_an_engine(run, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("\n".join(SOURCES))

    def translated(name: str) -> list[dict[str, object]]:
        output = tmp_path / f"{name}.jsonl"
        translate_file(from_hydra(TranslateConfig, composed(
            "translate", f"run={run}", f"input={source}", f"output={output}", f"engine={name}", "device=cpu", "search=greedy",
            "search.max_length=9", "details=true")))
        return [json.loads(line) for line in output.read_text().splitlines()]

    ours, theirs = translated("torch"), translated("ctranslate2")
    assert kept(run)
    for field in ("translation", "tokens", "alignment", "warnings"):
        assert [line[field] for line in theirs] == [line[field] for line in ours]
