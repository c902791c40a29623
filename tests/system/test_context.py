"""A model that reads the sentence before: what only that decides it gets right, line by line."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.configurations import composed, model_config, run_config
from tests.support.corpora import prepared_corpus
from tests.support.models import random_model
from translator.config.building import from_hydra
from translator.config.commands import EvaluateConfig, TranslateConfig
from translator.data.batching import BatchSource
from translator.data.preparation import Corpus
from translator.data.text_files import read_lines
from translator.evaluation.held_out import load_test_sets, sources_for
from translator.inference import line_formats
from translator.inference.files import Job, translate_file
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import save_tensors
from translator.text.tokenizer import PAD_ID

# The German pronoun is that of the noun in the sentence before.
NOUNS = [
    *((noun.split(), "Der", "Er") for noun in ("dog Hund", "tree Baum", "hat Hut", "key Schlüssel")),
    *((noun.split(), "Die", "Sie") for noun in ("cat Katze", "lamp Lampe", "door Tür", "clock Uhr"))]
WORDS = [word.split() for word in (
    "red rot", "big groß", "old alt", "new neu", "warm warm", "wet nass", "dark dunkel", "clean sauber")]


def write_documents(folder: Path) -> dict[str, tuple[str, str]]:
    """Write documents of two sentences: those of a split share no second sentence with those of others."""
    words = list(itertools.permutations(WORDS, 2))
    random.Random(1).shuffle(words)
    files = {}
    for split, drawn in (("train", words[8:]), ("validation", words[:4]), ("test", words[4:8])):
        lines = [
            (f"The {noun[0]}.\nIt is {a[0]} and {b[0]}.\n\n", f"{article} {noun[1]}.\n{pronoun} ist {a[1]} und {b[1]}.\n\n")
            for a, b in drawn for noun, article, pronoun in NOUNS]
        files[split] = str(folder / f"{split}.en"), str(folder / f"{split}.de")
        for file, texts in zip(files[split], zip(*lines, strict=True), strict=True):
            Path(file).write_text("".join(texts), encoding="utf-8")
    return files


def learn(corpus: Corpus, folder: Path, context: int, updates: int = 220) -> Path:
    """Train a model of one layer, and keep it in a run folder."""
    tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
    shape = model_config(encoder_layers=1, decoder_layers=1)
    model = random_model(shape, vocab=len(tokenizers[0]), seed=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    source = BatchSource(corpus.train, tokenizers, max_tokens=600, seed=1)
    places = ((epoch, number) for epoch in itertools.count() for number in range(len(source.plan(epoch))))
    for epoch, number in itertools.islice(places, updates):
        batch = source.batch(epoch, number)
        optimizer.zero_grad()
        logits = model(batch.source, batch.target_in)
        torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.target_out, ignore_index=PAD_ID).backward()
        optimizer.step()
    options = [f"model.{name}={'null' if value is None else value}" for name, value in vars(shape).items()]
    run = RunFolder(folder)
    run.create(run_config(*options, f"data.context={context}", "search=greedy", "data.target=de"), tokenizers, corpus.report)
    save_tensors(run.model_file, weights_of(model))
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, tuple[str, str]]:
    return write_documents(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def run(files, tmp_path_factory) -> Path:
    """A run that reads one sentence before each."""
    folder = tmp_path_factory.mktemp("runs")
    return learn(prepared_corpus(folder / "cache", context=1, **files), folder / "run", context=1)


@pytest.fixture(scope="module")
def translator(run) -> Translator:
    return Translator(run, device="cpu")


def right(translations: list[str], references: str) -> float:
    """Return the share of second sentences of each document that are translated as in the reference."""
    pairs = list(zip(translations, read_lines(Path(references)), strict=True))
    return sum(translation == reference for translation, reference in pairs[1::3]) / len(pairs[1::3])


def translate(run: Path, source: str, output: Path, *options: str) -> list[str]:
    translate_file(from_hydra(TranslateConfig, composed(
        "translate", f"run={run}", f"input={source}", f"output={output}", "search=greedy", "device=cpu", *options)))
    return list(read_lines(output))


def test_only_a_model_with_context_is_right(run, files, tmp_path):
    """Each second sentence has two translations, equally often: without context half can be right at most."""
    source, references = files["test"]
    translations = translate(run, source, tmp_path / "with.de")
    assert translations[2::3] == [""] * (len(translations) // 3)
    assert right(translations, references) > 0.9
    plain = learn(prepared_corpus(tmp_path / "cache", **files), tmp_path / "plain", context=0, updates=120)
    assert 0.2 < right(translate(plain, source, tmp_path / "without.de"), references) <= 0.5


def test_a_resumed_translation_knows_the_context(run, files, tmp_path, monkeypatch):
    monkeypatch.setattr(line_formats, "READ_BYTES", 40)
    whole, calls, whole_translate = translate(run, files["test"][0], tmp_path / "whole.de"), itertools.count(), Job.translate

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return whole_translate(*arguments)

    monkeypatch.setattr(Job, "translate", interrupted)
    with pytest.raises(SystemExit):
        translate(run, files["test"][0], tmp_path / "out.de")
    monkeypatch.setattr(Job, "translate", whole_translate)
    done = len((tmp_path / "out.de.partial").read_text().splitlines())
    assert 0 < done < len(whole)
    assert translate(run, files["test"][0], tmp_path / "out.de") == whole


def test_a_bad_line_is_refused_and_no_context(run, tmp_path, capsys):
    lines = [b"The dog.", b"It is red and big.", b"\xff\xfe", b"It is old and new.", b"", b"The cat.", b"It is wet and old."]
    (tmp_path / "lines.en").write_bytes(b"\n".join(lines))
    with pytest.raises(SystemExit, match="2"):
        translate(run, str(tmp_path / "lines.en"), tmp_path / "out.jsonl")
    assert "line 3: not UTF-8" in capsys.readouterr().err
    answers = [json.loads(line) for line in read_lines(tmp_path / "out.jsonl")]
    assert len(answers) == len(lines)
    assert [answer["source"] for answer in answers[3:]] == [line.decode() for line in lines[3:]]
    assert [answers[number]["translation"].split()[0] for number in (1, 6)] == ["Er", "Sie"]


def test_a_text_may_bring_its_context(translator):
    texts = ["The dog. >>sep<< It is wet and old.", "The cat. >>sep<< It is wet and old."]
    requests = [Request("It is wet and old.", context=text.partition("It")[0]) for text in texts]
    assert translator(texts) == [translation.text for translation in translator.translate(requests)]
    assert [text.split()[0] for text in translator(texts)] == ["Er", "Sie"]
    [(tag, own)] = {translator.planner.split_tag(texts[0], translator.search)}
    assert (tag, own) == ("The dog. >>sep<< ", "It is wet and old.")
    masked = translator.planner.plan(Request(texts[0]), dataclasses.replace(translator.search, robust=True))
    assert translator.planner.without_placeholders(masked[0]).ids == translator.source_tokenizer.encode([texts[0]])[0]


def test_a_line_that_ends_in_the_separator_is_refused(translator):
    behind, between, nothing = translator.translate(["The dog. >>sep<<", "The dog. >>sep<< It is wet.", " "], translator.search)
    assert behind.refused == "no text follows >>sep<<; not translated"
    assert between.refused == nothing.refused == ""


def test_a_context_that_leaves_no_room_is_left_out(translator):
    """Neither is the text refused, nor cut into clauses."""
    long, text = "The dog. " * 20 + ">>sep<< ", "It is wet and old, and it is new and warm."
    alone, behind = translator.translate([text, Request(text, context=long)])
    assert (behind.refused, behind.text, behind.sentences) == ("", alone.text, 1)


def test_test_files_are_read_in_the_context_of_each_run(run, run_folder, files):
    source, references = files["test"]
    config = from_hydra(EvaluateConfig, composed(
        "evaluate", f"run={run}", f"source_file={source}", f"reference_file={references}"))
    [test_set] = load_test_sets(config, run, [run])
    lines = list(read_lines(Path(source)))
    assert sources_for(run, test_set.sources, None)[:3] == [lines[0], f"{lines[0]} >>sep<< {lines[1]}", ""]
    assert sources_for(run_folder, test_set.sources, None) == lines
