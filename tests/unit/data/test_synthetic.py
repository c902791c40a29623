"""Pairs that models make are cleaned and counted like any, and share no sentence with validation or test."""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.configurations import tokenizer_config
from tests.support.corpora import PAIRS, data_config, pairs_of, write_pairs
from translator.config.data import DataConfig
from translator.config.languages import BACK_TRANSLATED
from translator.data.preparation import clean_splits, load_report, load_rows, prepare
from translator.data.sources import SPLITS
from translator.data.synthetic import NOT_DRAWN, REFUSED, SyntheticSplits
from translator.runtime.errors import UserError
from translator.text.tokenizer import UNK_ID


@dataclasses.dataclass
class FakeModel:
    """Translates by a table, and else by putting a word in front."""

    known: dict[str, str | None] = dataclasses.field(default_factory=dict)
    name: str = "runs/fake"
    identity: Sequence[str] = ("1",)
    asked: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, texts: Sequence[str]) -> Iterator[str | None]:
        for text in texts:
            self.asked.append(text)
            yield self.known.get(text, f"so {text}")


def config_of(folder: Path, **changes: object) -> DataConfig:
    pairs = list(PAIRS)
    random.Random(1).shuffle(pairs)
    return data_config(folder / "cache", train=str(write_pairs(folder / "pairs.tsv", pairs)), **changes)


def splits_of(config: DataConfig, teacher: FakeModel | None = None, reverse: FakeModel | None = None) -> dict[str, list]:
    folder = SyntheticSplits(config, teacher, reverse).folder()
    return {split: pairs_of(load_rows(folder, split)) for split in SPLITS} | {
        "counts": load_report(folder)["splits"]["train"]}


def texts_of(config: DataConfig) -> dict[str, list]:
    return {split: pairs_of(load_rows(clean_splits(config), split)) for split in SPLITS}


@pytest.mark.parametrize("taught", ["only", "both"])
def test_a_teacher_makes_the_targets_of_train_only(tmp_path, taught):
    config = config_of(tmp_path, teacher="x", taught=taught)
    plain, made = texts_of(config), splits_of(config, FakeModel())
    assert (made["validation"], made["test"]) == (plain["validation"], plain["test"])
    outputs = [(source, f"so {source}") for source, _ in plain["train"]]
    assert made["train"] == (plain["train"] if taught == "both" else []) + outputs
    assert made["counts"]["kept"] == len(made["train"])
    assert made["counts"]["note"].startswith("targets by runs/fake")


def test_bad_outputs_drop_their_pairs_and_are_counted(tmp_path):
    config = config_of(tmp_path, teacher="x", taught="both", limit=160)
    plain = texts_of(config)
    sources, held_out = [source for source, _ in plain["train"]], plain["test"][0][1]
    bad = dict(zip(sources, [None, "  ", held_out, "word " * 100, plain["train"][4][1]], strict=False))
    made = splits_of(config, FakeModel(bad))
    assert made["train"][160:] == [(source, f"so {source}") for source in sources[5:]]
    dropped = made["counts"]["dropped"]
    for cause in (REFUSED, "empty", "overlap with validation or test", "too long", "duplicate"):
        assert dropped[cause] == 1, cause
    assert made["counts"]["read"] == made["counts"]["kept"] + sum(dropped.values())
    with pytest.raises(UserError, match=rf"no pair is left .* {REFUSED}"):
        splits_of(dataclasses.replace(config, taught="only"), FakeModel(dict.fromkeys(sources)))


def monolingual(folder: Path, count: int = 600) -> Path:
    path = folder / "more.de.gz"
    lines = [f"Er singt {number}  Lieder." for number in range(count)]
    path.write_bytes(gzip.compress("\n".join([*lines, "", lines[0], "x" * 300]).encode()))
    return path


@pytest.mark.parametrize("share", [0.25, 0.9])
def test_back_translations_are_tagged_and_take_their_share(tmp_path, share):
    text = monolingual(tmp_path)
    config = config_of(tmp_path, monolingual=str(text), reverse="x", monolingual_share=share)
    held_out = texts_of(config)["validation"][0][1]
    text.write_bytes(text.read_bytes() + gzip.compress(held_out.encode()))
    plain, reverse = texts_of(config), FakeModel()
    made = splits_of(config, reverse=reverse)
    real, synthetic = made["train"][: len(plain["train"])], made["train"][len(plain["train"]) :]
    assert real == plain["train"]
    assert len(synthetic) == len(reverse.asked) == min(600, round(len(real) * share / (1 - share)))
    assert all(source == f"{BACK_TRANSLATED} so {target}" for source, target in synthetic)
    assert "x" * 300 not in reverse.asked  # nothing is translated that cleaning would drop
    counts = made["counts"]
    assert {"empty", "duplicate", "too long"} <= counts["dropped"].keys()
    assert counts["dropped"].get(NOT_DRAWN, 0) == 600 - len(synthetic)
    assert counts["read"] == counts["kept"] + sum(counts["dropped"].values())
    assert ("fewer than" in counts["note"]) == (share == 0.9)


def test_the_lines_drawn_do_not_depend_on_their_order(tmp_path):
    drawn = []
    for name, step in (("a", 1), ("b", -1)):
        (tmp_path / name).mkdir()
        text = tmp_path / name / "more.txt"
        text.write_text("\n".join(["Er singt.", *(f"Er malt {n}." for n in range(500))][::step]))
        reverse = FakeModel()
        splits_of(config_of(tmp_path / name, monolingual=str(text), reverse="x"), reverse=reverse)
        drawn.append(reverse.asked)
    assert drawn[0] == drawn[1]


def test_the_tag_is_a_source_piece_but_no_language(tmp_path):
    config = config_of(tmp_path, monolingual=str(monolingual(tmp_path)), reverse="x")
    splits = SyntheticSplits(config, None, FakeModel()).folder()
    corpus = prepare(config, tokenizer_config(narrow_target=True), max_tokens=100, splits=splits)
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    [tag] = source.ids_of([BACK_TRANSLATED])
    assert tag != UNK_ID
    assert target.ids_of([BACK_TRANSLATED]) == [UNK_ID]  # so no output can hold it
    assert source.tags == ()  # an ordinary text needs none
    tagged = [ids for ids, text in zip(corpus.train["source_ids"], corpus.train["source"], strict=True)
              if text.startswith(BACK_TRANSLATED)]
    assert tagged
    assert all(tag in ids[: source.count_tags(ids)] for ids in tagged)
    assert all(tag not in ids for ids in corpus.validation["source_ids"])


@pytest.mark.parametrize(("changes", "other"), [
    ({"teacher": "x", "taught": "both"}, {"teacher": "x"}), ({"teacher": "x"}, {"teacher": "x", "max_ratio": 2.5})])
def test_the_cache_knows_data_models_and_options(tmp_path, changes, other):
    config = config_of(tmp_path, **changes)
    first = SyntheticSplits(config, FakeModel(), None).folder()
    again = FakeModel()
    assert SyntheticSplits(dataclasses.replace(config, teacher="moved", workers=3), again, None).folder() == first
    assert not again.asked
    assert SyntheticSplits(config, FakeModel(identity=["2"]), None).folder() != first
    assert SyntheticSplits(config_of(tmp_path, **other), FakeModel(), None).folder() != first


def test_monolingual_text_must_hold_usable_lines(tmp_path):
    (tmp_path / "a.tsv").write_text("en\tde\n")
    (tmp_path / "a.txt").write_text("\n\n")
    for name, problem in (("a.tsv", "is a table"), ("a.txt", "holds no usable line"), ("b.txt", "no such file")):
        config = config_of(tmp_path, monolingual=str(tmp_path / name), reverse="x")
        with pytest.raises(UserError, match=problem):
            splits_of(config, reverse=FakeModel())


@pytest.mark.parametrize(("changes", "problem"), [
    ({"teacher": "x", "window": 10, "validation": "v", "test": "t"}, "data.teacher: needs prepared data. Set data.window=null"),
    ({"monolingual": "x", "reverse": "y", "target": "de+fr"}, "data.monolingual: is for one source and one target language")])
def test_streams_and_several_languages_are_refused(changes, problem):
    with pytest.raises(UserError, match=problem):
        data_config(**changes)
