"""Several corpora are prepared together, and an epoch has them in exact shares."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import tokenizer_config
from tests.support.corpora import PAIRS, data_config, json_lines, pairs_of, write_pairs
from tests.support.processes import processes
from translator.config.corpora import apportioned, corpora_of
from translator.config.data import DataConfig
from translator.data.batching import BatchSource
from translator.data.mixing import Mix, weights_of
from translator.data.preparation import Corpus, corpora_in, load_counts, load_split, prepare
from translator.data.report import describe_data
from translator.data.stream import WindowSource
from translator.runtime.distributed import rank, world_size
from translator.runtime.errors import UserError

FIRST, SECOND, THIRD = PAIRS[:80], PAIRS[80:150], PAIRS[150:180]
CAPTIONS = [(f"A dog {n}.", f"Ein Hund {n}.") for n in range(20)]


def mixed(folder: Path, *, named: tuple[str, ...] = ("validation", "test"), **changes: Any) -> DataConfig:
    """Two corpora with held-out pairs of their own."""
    entries = [{"name": "general", "train": FIRST}, {"name": "captions", "train": SECOND}]
    for entry, pairs in zip(entries, (THIRD, CAPTIONS), strict=True):
        entry |= {"validation": pairs[:10], "test": pairs[10:]}
        for split in [split for split in ("train", "validation", "test") if split in entry]:
            entry[split] = str(write_pairs(folder / f"{entry['name']}-{split}.tsv", entry[split]))
    for entry in entries:
        for split in {"validation", "test"} - set(named):
            del entry[split]
    options = {"corpora": [entry | changes.pop(entry["name"], {}) for entry in entries], "train": None}
    return data_config(folder / "cache", **options | changes)


def prepared(config: DataConfig) -> Corpus:
    return prepare(config, tokenizer_config(), max_tokens=100)


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 1000), min_size=1, max_size=6))
def test_parts_are_shares_but_for_rounding(total, weights):
    parts = apportioned(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1, "c": 2}, {"a": 0.2, "c": 5}, {"b": 1}], ids=str)
def test_shares_are_exact_over_ten_epochs(weights):
    mix = Mix({"a": range(100), "b": range(100, 107), "c": range(107, 150)}, weights)
    met = {name: Counter() for name in mix.sections}
    for epoch in range(10):
        rows = mix.rows(epoch, seed=3)
        assert len(rows) == sum(len(mix.sections[name]) for name in weights)
        for name, places in mix.sections.items():
            of_corpus = [row for row in rows.tolist() if row in places]
            assert len(of_corpus) == mix.counts().get(name, 0)
            met[name].update(of_corpus)
    for name in weights:  # walked through again and again: none comes twice more often than another
        times = [met[name][row] for row in mix.sections[name]]
        assert max(times) - min(times) <= 1
    assert (mix.rows(4, seed=3) != mix.rows(4, seed=5)).any()


def test_epochs_of_a_mix_can_be_taken_up_anywhere(tmp_path):
    corpus = prepared(mixed(tmp_path))
    sections = corpora_in(corpus.report, "train")
    assert sections == {"general": range(80), "captions": range(80, 150)}

    def source() -> BatchSource:
        return BatchSource(corpus.train, (corpus.source_tokenizer, corpus.target_tokenizer), max_tokens=90, seed=1,
                           mix=Mix(sections, {"general": 1, "captions": 9}))

    whole = source()
    batches = [whole.batch(epoch, number) for epoch in range(3) for number in range(len(whole.plan(epoch)))]
    assert sum(len(batch.source) for batch in batches) == 3 * 150
    rows = np.concatenate([whole.rows(epoch, slice(None)) for epoch in range(3)])
    assert (rows < 80).sum() == 3 * 15
    last = source().batch(2, len(whole.plan(2)) - 1)
    assert last.source.equal(batches[-1].source)
    assert last.seed == batches[-1].seed


def test_a_pair_that_comes_twice_is_changed_twice(tmp_path):
    corpus = prepared(mixed(tmp_path))
    sections = {"one": range(1)}
    config = dataclasses.replace(data_config().augment, typos=0.5)
    source = BatchSource(corpus.train.select([0]), (corpus.source_tokenizer,) * 2, max_tokens=5000, seed=1, augment=config,
                         mix=Mix({"one": range(1)}, {"one": 1}))
    changed = {tuple(map(tuple, source.batch(epoch, 0).source.tolist())) for epoch in range(20)}
    assert sections == source.mix.sections  # type: ignore[union-attr]
    assert len(changed) > 3


def test_corpora_are_cleaned_together(tmp_path):
    """Of equal pairs the first corpus has one; no corpus has a sentence of another's test set."""
    twice, held_out = FIRST[:3], [(CAPTIONS[15][0], "Etwas anderes.")]
    config = mixed(tmp_path, captions={"train": str(write_pairs(tmp_path / "x.tsv", [*SECOND, *twice, *held_out]))})
    assert pairs_of(load_split(config, "train")) == [*FIRST, *SECOND]
    assert pairs_of(load_split(config, "test")) == [*THIRD[10:], *CAPTIONS[10:]]
    corpus = prepared(config)
    of_captions = corpus.report["corpora"]["train"]["captions"]
    assert of_captions["read"] == len(SECOND) + 4
    assert of_captions["dropped"] == {"duplicate": 3, "overlap with validation or test": 1}
    assert corpus.report["corpora"]["train"]["general"]["dropped"] == {}
    assert corpus.report["splits"]["train"]["read"] == len(FIRST) + len(SECOND) + 4
    assert load_counts(config)["train"]["captions"].dropped == of_captions["dropped"]


def test_an_entry_has_its_own_columns_and_filters(tmp_path):
    rows = [{"english": s, "german": t, "quality": n / 10} for n, (s, t) in enumerate(SECOND[:10])]
    rows[3]["quality"] = None
    file = json_lines(tmp_path / "scored.jsonl", rows)
    config = mixed(tmp_path, general={"limit": 5, "max_ratio": 100}, captions={
        "train": str(file), "source": "english", "target": "german", "score": "quality", "min_score": 0.2,
        "validation": None, "test": None})
    assert pairs_of(load_split(config, "train")) == [*FIRST[:5], *SECOND[2:3], *SECOND[4:10]]
    assert prepared(config).report["corpora"]["train"]["captions"]["dropped"] == {"low score": 3}


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet"])
def test_scores_are_read_from_any_table(tmp_path, kind):
    import pandas as pd

    table = pd.DataFrame({"en": [s for s, _ in PAIRS], "score": np.linspace(0, 1, len(PAIRS)), "de": [t for _, t in PAIRS]})
    file = tmp_path / f"pairs.{kind}"
    table.to_parquet(file) if kind == "parquet" else table.to_csv(file, sep="\t" if kind == "tsv" else ",", index=False)
    config = data_config(tmp_path / "cache", train=str(file), score="score", min_score=0.5)
    kept = {pair for split in ("train", "validation", "test") for pair in pairs_of(load_split(config, split))}
    assert kept == set(PAIRS[len(PAIRS) // 2 :])
    with pytest.raises(UserError, match="has no column quality, but en"):
        load_split(dataclasses.replace(config, score="quality"), "train")


def test_without_held_out_sets_they_are_cut_from_all(tmp_path):
    config = mixed(tmp_path, named=(), holdout=10)
    held_out = {*pairs_of(load_split(config, "validation")), *pairs_of(load_split(config, "test"))}
    assert len(held_out) == 20
    assert held_out & set(FIRST)
    assert held_out & set(SECOND)
    assert not held_out & set(pairs_of(load_split(config, "train")))
    assert corpora_in(prepared(config).report, "test") == {"": range(10)}


def test_what_is_cut_passes_the_filters_of_its_corpus(tmp_path):
    shortest = sorted(len(source) for source, _ in FIRST)[20]
    copies = [(source, source) for source, _ in SECOND]
    file = str(write_pairs(tmp_path / "copies.tsv", [*SECOND, *copies]))
    config = mixed(tmp_path, named=(), holdout=10, general={"max_characters": shortest},
                   captions={"train": file, "drop_copies": True})
    held_out = {*pairs_of(load_split(config, "validation")), *pairs_of(load_split(config, "test"))}
    assert len(held_out) == 20
    assert not held_out & set(copies)
    assert all(len(source) <= shortest for source, _ in held_out & set(FIRST))


def test_corpora_of_several_languages_are_tagged(tmp_path):
    french = [(s, t.replace("Sie", "Elle")) for s, t in SECOND]
    file = json_lines(tmp_path / "fr.jsonl", [{"en": s, "fr": t} for s, t in french])
    config = mixed(tmp_path, target="de+fr", general={"target": "de"}, captions={
        "train": str(file), "target": "fr", "validation": None, "test": None})
    assert pairs_of(load_split(config, "train")) == [
        *((f">>de<< {s}", t) for s, t in FIRST), *((f">>fr<< {s}", t) for s, t in french)]


def test_shares_follow_weights_or_sizes(tmp_path):
    sections = {"general": range(800), "captions": range(800, 900)}
    assert weights_of(mixed(tmp_path), sections) == {}
    weighted = mixed(tmp_path, general={"weight": 3}, captions={"weight": 0.5})
    assert weights_of(weighted, sections) == {"general": 3, "captions": 0.5}
    flat = weights_of(mixed(tmp_path, temperature=3), sections)
    assert flat["general"] / flat["captions"] == pytest.approx(2)


@pytest.mark.parametrize(("changes", "words"), [
    ({"general": {"name": "captions"}}, "two entries have the name captions"), ({"general": {"name": None}}, "has no name"),
    ({"general": {"name": 2017}}, "the name 2017 is no text. Put it in quotes"),
    ({"general": {"name": "a.b"}}, "the name 'a.b' must be"), ({"general": {"weight": 2}}, "a weight, or none"),
    ({"general": {"weight": 0}}, "data.corpora, general: weight: must"), ({"general": {"wieght": 2}}, "did you mean weight"),
    ({"general": {"window": 2}}, "general: window: holds for all"), ({"general": {"train": None}}, None),
    ({"general": {"train": None, "validation": None, "test": None}}, "general: train: names no data"),
    ({"general": {"train": "missing.tsv"}}, "data.corpora, general: missing.tsv"),
    ({"general": {"score": "x"}}, "general: score: and data.min_score"),
    ({"general": {"train": ["a", "b"], "score": "x", "min_score": 1}}, "Give a table"),
    ({"train": "x.tsv"}, "data.train: says where one corpus is"), ({"temperature": 0.5}, "data.temperature"),
    ({"temperature": 5, "general": {"weight": 1}, "captions": {"weight": 1}}, "replaces weights"),
    ({"target": "de+fr", "general": {"target": "es"}}, "are not among the languages"),
    ({"general": {"source": "de", "target": "en"}}, "general: source: and target are swapped"),
    ({"general": {"corpus": "Tatoeba"}}, "general: train: and corpus both name training pairs"),
    ({"teacher": "runs/x"}, "translates one corpus"),
    ({"general": {"name": "back-translated"}}, "name: is reserved"), ({"validation": "x.tsv"}, "validation: says where one"),
    ({"general": {"train": None, "weight": 3}, "captions": {"weight": 1}}, "weight: is a share of the training pairs"),
    ({"window": 60}, "needs weights"), ({"corpora": []}, "data.corpora")], ids=str)
def test_mistakes_in_corpora_get_one_line(tmp_path, changes, words):
    if words is None:  # an entry may be there for its test set only
        assert pairs_of(load_split(mixed(tmp_path, **changes), "train")) == SECOND
        return
    with pytest.raises(UserError, match=words):
        load_split(mixed(tmp_path, **changes), "train")


def test_one_entry_is_the_corpus_itself(tmp_path):
    file = str(write_pairs(tmp_path / "x.tsv", PAIRS))
    alone = prepared(data_config(tmp_path / "cache", train=file))
    entry = prepared(data_config(tmp_path / "cache", train=None, corpora=[{"name": "x", "train": file}]))
    for split in ("train", "validation", "test"):
        assert pairs_of(getattr(alone, split)) == pairs_of(getattr(entry, split))
    assert alone.source_tokenizer.model == entry.source_tokenizer.model
    assert corpora_in(alone.report, "train") == {}
    assert corpora_in(entry.report, "train") == {"x": range(len(alone.train))}


def test_the_data_report_counts_by_corpus(tmp_path):
    config = mixed(tmp_path, captions={"train": str(write_pairs(tmp_path / "x.tsv", [*SECOND, FIRST[0]]))})
    described = describe_data(config)
    assert "train, general: 80 of 80 pairs" in described
    assert "train, captions: 70 of 71 pairs; dropped: 1 duplicate" in described
    narrow = describe_data(mixed(tmp_path, general={"limit": 7}))
    assert "73 dropped: beyond data.limit (data.limit=7)" in narrow


def stream(folder: Path) -> tuple[DataConfig, Corpus]:
    config = mixed(folder, window=40, general={"weight": 3}, captions={"weight": 1})
    return config, prepared(config)


def walk(folder: Path, config: DataConfig, corpus: Corpus) -> None:
    """Write down the targets of some windows."""
    source = WindowSource(config, corpus, max_tokens=150, longest=150, seed=1, sampling=0.0, timeout_minutes=1)
    windows = [[source.batch(window, number).target_out.tolist() for number in range(len(source.plan(window)))]
               for window in (0, 1, 4)]
    source.close()
    (folder / f"{world_size()}-{rank()}.json").write_text(json.dumps(windows))


def test_windows_of_a_stream_have_the_shares(tmp_path):
    config, corpus = stream(tmp_path)
    walk(tmp_path, config, corpus)
    windows = json.loads((tmp_path / "1-0.json").read_text())
    known = [{tuple(ids) for ids in corpus.target_tokenizer.encode([t for _, t in pairs])} for pairs in (FIRST, SECOND)]
    for window in windows:
        targets = [tuple(i for i in ids if i) for batch in window for ids in batch]
        counts = [sum(target in of_corpus for target in targets) for of_corpus in known]
        assert abs(counts[0] - 3 * counts[1]) <= 3
        assert sum(counts) == len(targets)
    assert processes(3, walk, tmp_path, config, corpus) == [0, 0, 0]
    assert all(json.loads((tmp_path / f"3-{number}.json").read_text()) == windows for number in range(3))


def test_streamed_corpora_are_read_in_windows_of_their_share(tmp_path):
    config, _ = stream(tmp_path)
    assert [corpus.window for corpus in corpora_of(config)] == [30, 10]
