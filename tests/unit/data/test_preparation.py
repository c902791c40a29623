"""Every format reads the same rows, every row is kept or counted, no sentence crosses splits, and the cache never lies."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.configurations import run_config, tokenizer_config
from tests.support.corpora import PAIRS, data_config, json_lines, pairs_of, prepared_corpus, write_pairs
from tests.support.paths import ROOT, SHARED_DATASETS
from translator.config.augmentation import AugmentConfig
from translator.config.data import DataConfig
from translator.data import preparation as data
from translator.data.cleaning import EXAMPLES, same_sentence
from translator.data.preparation import TOO_LONG, cached_folder, load_split, prepare
from translator.data.report import describe
from translator.data.sources import SPLITS, hub_id, identity, read, windows
from translator.runtime.errors import UserError
from translator.text.tokenizer import EOS_ID

TRICKY = [
    ('"A" quoted', 'Ein "Zitat'), ("NA", "null"), ("None", "nan"), ("007", "1.0"), ("a, b; c", "d, e"), ("'tis", "’s ist"),
    ("naïve café", "日本語 🙂"), ("True", "1e5"), ("# comment", "\\n stays"), ("a\u2028b", "c\x85d")]
WORDS = st.text("abcß ", max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _own_datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`datasets` keeps its own copies of what it reads: not in the user's folder while testing."""
    before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, tmp_path_factory.mktemp("datasets")
    yield
    datasets.config.HF_DATASETS_CACHE = before


def table(path: Path, pairs: list[tuple[str, str]], **style: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **style).writerows([("id", "en", "de"), *((i, *pair) for i, pair in enumerate(pairs))])


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> None:
    path.write_text("id\ten\tde\n" + "".join(f"{i}\t{s}\t{t}\n" for i, (s, t) in enumerate(pairs)), encoding="utf-8")


def flat_rows(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"id": i, "en": s, "de": t} for i, (s, t) in enumerate(pairs)]


def nested_rows(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"id": i, "translation": {"de": t, "en": s, "fr": ""}} for i, (s, t) in enumerate(pairs)]


FORMATS: dict[str, Callable[[Path, list[tuple[str, str]]], object]] = {
    "flat.jsonl": lambda path, pairs: json_lines(path, flat_rows(pairs)),
    "nested.jsonl": lambda path, pairs: json_lines(path, nested_rows(pairs)),
    "array.json": lambda path, pairs: path.write_text(json.dumps(flat_rows(pairs), indent=1)),
    "comma.csv": table,
    "windows.csv": lambda path, pairs: table(path, pairs, lineterminator="\r\n", quoting=csv.QUOTE_ALL),
    "plain.tsv": write_tsv,
    "flat.parquet": lambda path, pairs: pq.write_table(pa.Table.from_pylist(flat_rows(pairs)), path),
    "nested.parquet": lambda path, pairs: pq.write_table(pa.Table.from_pylist(nested_rows(pairs)), path),
}


# Reading


@pytest.mark.parametrize("name", [*FORMATS, *(f"{name}.gz" for name in FORMATS)])
def test_every_format_reads_the_same_rows(tmp_path, name):
    file = tmp_path / name
    FORMATS[name.removesuffix(".gz")](file, TRICKY)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(file.read_bytes()))
    assert pairs_of(read(data_config(tmp_path, train=str(file)), "train")) == TRICKY
    turned = read(data_config(tmp_path, train=str(file), source="de", target="en"), "train")
    assert pairs_of(turned) == [(t, s) for s, t in TRICKY]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_the_same_rows_in_a_folder(tmp_path, name):
    (tmp_path / "folder").mkdir()
    FORMATS[name](tmp_path / "folder" / f"train{Path(name).suffix}", TRICKY)
    there = {"path": str(tmp_path / "folder"), "train": "train"}
    assert pairs_of(read(data_config(tmp_path, **there), "train")) == TRICKY
    assert pairs_of(next(windows(data_config(tmp_path, **there, validation="v", test="t", window=1000)))) == TRICKY


@pytest.mark.parametrize("name", ["numbers.tsv", "numbers.csv"])
def test_numbers_in_tables_stay_text(tmp_path, name):
    pairs = [("007", "1.0"), ("1e3", "08"), ("None", "NA")]
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / f"train{Path(name).suffix}"
    FORMATS["plain.tsv" if name.endswith("tsv") else "comma.csv"](file, pairs)
    assert pairs_of(read(data_config(tmp_path, train=str(file)), "train")) == pairs
    assert pairs_of(read(data_config(tmp_path, path=str(file.parent), train="train"), "train")) == pairs


def test_other_columns_of_a_table_need_not_be_of_one_type(tmp_path):
    """Readers guess a type for each ten thousand rows."""
    rows = [f"{i if i < 10_000 else 'none'}\tA dog.\tEin Hund {i}.\n" for i in range(10_100)]
    (tmp_path / "a.tsv").write_text("score\ten\tde\n" + "".join(rows))
    kept = pairs_of(read(data_config(tmp_path, train=f"{tmp_path}/a.tsv"), "train"))
    assert kept == [("A dog.", f"Ein Hund {i}.") for i in range(10_100)]
    stream = windows(data_config(
        tmp_path, train=f"{tmp_path}/a.tsv", validation="v", test="t", window=10_050))
    assert pairs_of(next(stream)) == kept


def test_a_file_s_name_is_no_pattern(tmp_path):
    write_tsv(tmp_path / "a[12].tsv", TRICKY)
    write_tsv(tmp_path / "a1.tsv", PAIRS)
    assert pairs_of(read(data_config(tmp_path, train=f"{tmp_path}/a[12].tsv"), "train")) == TRICKY


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_paired_text_reads_the_same_rows(tmp_path, suffix, newline):
    names = []
    for side, language in enumerate(("en", "de")):
        content = "".join(pair[side] + newline for pair in TRICKY).encode()
        names.append(tmp_path / f"{language}{suffix}")
        names[-1].write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert pairs_of(read(data_config(tmp_path, train=list(map(str, names))), "train")) == TRICKY


def csv_with(folder: Path, text: str, window: int | None) -> DataConfig:
    """A CSV file of 200 rows that holds a row of text, or more, in lines 2 and 102, read whole or in windows."""
    end = text[-1]
    rows = "".join(f"Dog {n}.,Hund {n}.,{end}" for n in range(99))
    (folder / "pairs.csv").write_bytes(f"en,de,note{end}{text}{rows}{text}{rows}".encode())
    held_out = str(write_pairs(folder / "held.tsv", PAIRS))
    return data_config(folder / "cache", train=f"{folder}/pairs.csv", window=window, validation=held_out, test=held_out)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("text", "line", "begun"), [
    ('"Hello, he said to me,"Hallo, sagte er zu mir\n', 2, 2), ('"A dog" ,Ein Hund,\n', 2, 2), ('"A dog,Ein Hund,\n', 102, 2),
    ('A dog,Ein Hund,"fine\n', 102, 2), ('"A dog,Ein Hund\nA dog,Ein "\n', 3, 2)])
def test_ambiguous_quotation_marks_are_refused(tmp_path, text, line, begun, window):
    with pytest.raises(UserError, match=rf"pairs.csv:{line}: .*quotation mark") as caught:
        read(csv_with(tmp_path, text, window), "train")
    assert (f"begins in line {begun}" in str(caught.value)) == (line != begun)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("text", "warned"), [
    ('A "dog",Ein Hund,\n', False), ('"A ""dog""",Ein Hund,\n', False), ('"A, dog","Ein, Hund",""\n', False),
    ('"A\ndog","Ein\n""Hund""",\n', True)])
def test_plain_quotation_marks_are_read_and_line_breaks_told(tmp_path, capsys, text, warned, window):
    options = csv_with(tmp_path, text, window)
    assert sum(map(len, islice(windows(options), 4)) if window else [len(read(options, "train"))]) == 200
    read(options, "train")
    assert capsys.readouterr().err.count("pairs.csv: some cells hold line breaks") == warned  # once


def test_line_breaks_within_csv_cells_become_spaces_in_train(tmp_path):
    table(tmp_path / "a.csv", [*PAIRS, ("one\nline", "eine \r\n Zeile ")])
    config = data_config(tmp_path, train=f"{tmp_path}/a.csv")
    train, validation, test = (pairs_of(load_split(config, split)) for split in SPLITS)
    assert ("one line", "eine Zeile") in train or ("one\nline", "eine \r\n Zeile ") in validation + test


def test_local_folders(tmp_path):
    """Data files with a card, a folder within, saved splits with slices, a saved single dataset."""
    files, within, saved, single = (tmp_path / name for name in ("files", "within/sub", "saved", "single"))
    for folder in (files, within):
        folder.mkdir(parents=True)
        json_lines(folder / "train.jsonl", flat_rows(PAIRS))
    (files / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Pairs\n")
    rows = datasets.Dataset.from_list(flat_rows(PAIRS))
    datasets.DatasetDict({"train": rows, "dev": rows.select(range(4))}).save_to_disk(saved)
    rows.save_to_disk(single)
    for options in ({"path": files}, {"path": within.parent, "folder": "sub"}, {"path": saved}, {"path": single}):
        options = {key: str(value) for key, value in options.items()}
        assert pairs_of(read(data_config(tmp_path, train="train", **options), "train")) == PAIRS
        assert pairs_of(read(data_config(tmp_path, train="train[:10]", **options), "train")) == PAIRS[:10]
    assert pairs_of(read(data_config(tmp_path, train="train[-2:]+dev", path=str(saved)), "train")) == PAIRS[-2:] + PAIRS[:4]
    assert pairs_of(read(data_config(tmp_path, train="train[50%:]", path=str(saved)), "train")) == PAIRS[96:]


@pytest.mark.parametrize("suffix", ["arrow", "jsonl.xz"])
def test_a_folder_of_files_that_datasets_reads_natively(tmp_path, suffix):
    file = tmp_path / "data" / f"train.{suffix}"
    file.parent.mkdir()
    for pairs in (PAIRS[:20], PAIRS):
        rows = pa.Table.from_pylist(flat_rows(pairs))
        if suffix == "arrow":
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
        else:
            file.write_bytes(lzma.compress(json_lines(tmp_path / "plain", flat_rows(pairs)).read_bytes()))
        for split, expected in (("train", pairs), ("train[-5:]", pairs[-5:])):
            assert pairs_of(read(data_config(tmp_path, path=str(file.parent), train=split), "train")) == expected
    assert not list(Path(datasets.config.HF_DATASETS_CACHE).iterdir())


@pytest.mark.parametrize("cache", ["cache", "data/cache", "."])
def test_changed_data_is_noticed_through_links_and_any_cache(tmp_path, cache):
    for name, pairs in (("one", PAIRS[:90]), ("two", PAIRS[90:180])):
        (tmp_path / "data" / name).mkdir(parents=True)
        json_lines(tmp_path / "data" / name / "train.jsonl", flat_rows(pairs))
    link = tmp_path / "data" / "current"
    options = {"path": str(tmp_path / "data"), "folder": "current", "holdout": 5}

    def trained_on() -> set[str]:
        return set(prepared_corpus(tmp_path / cache, train="train", **options).train["source"])

    link.symlink_to("one")
    assert trained_on() == trained_on() <= {source for source, _ in PAIRS[:90]}
    link.unlink()
    link.symlink_to("two")
    assert trained_on() <= {source for source, _ in PAIRS[90:180]}
    json_lines(tmp_path / "data" / "two" / "train.jsonl", flat_rows(PAIRS[:60]))
    assert trained_on() <= {source for source, _ in PAIRS[:60]}


def test_a_link_that_leads_back_is_followed_once(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    json_lines(folder / "train.jsonl", flat_rows(PAIRS))
    (folder / "again").symlink_to(folder)
    assert len(identity(data_config(tmp_path, path=str(folder), train="train"))) == 1


def make_bad_files(folder: Path) -> None:
    write_pairs(folder / "good.tsv", PAIRS)
    (folder / "cut.jsonl").write_text('{"en": "a", "de": "b"}\n{"en": "c", "de":\n')
    (folder / "latin.jsonl").write_bytes('{"en": "a", "de": "b"}\n{"en": "café", "de": "c"}\n'.encode("latin-1"))
    (folder / "latin.tsv").write_bytes("en\tde\na\tb\ncafé\tc\n".encode("latin-1"))
    (folder / "latin.csv.gz").write_bytes(gzip.compress("en,de\na,b\ncafé,c\n".encode("latin-1")))
    pq.write_table(pa.table({"en": ["caf"], "de": ["b"]}), folder / "latin.parquet", compression="none", use_dictionary=False)
    content = (folder / "latin.parquet").read_bytes()
    (folder / "latin.parquet").write_bytes(content.replace(b"caf", b"ca\xe9"))
    (folder / "cut.json").write_text('[{"en": "a", "de": "b"}, {"en": "c"')
    for name in ("junk.jsonl", "junk.json", "junk.tsv", "junk.csv", "junk.parquet", "junk.tsv.gz"):
        (folder / name).write_bytes(bytes(range(256)) * 40)
    (folder / "empty.csv").write_bytes(b"")
    (folder / "none.json").write_text("[]")
    (folder / "blank.jsonl").write_text("\n\n")
    (folder / "header.tsv").write_text("en\tde\n")
    (folder / "ragged.csv").write_text("en,de\na,b\nc,d,e\n")
    (folder / "scored.tsv").write_text("en\tde\n" + "A dog.\tEin Hund.\t0.93\n" * 30)
    (folder / "twice.tsv").write_text("en\tde\ten\n" + "A dog.\tEin Hund.\tA cat.\n" * 30)
    (folder / "numbers.jsonl").write_text('{"en": 1, "de": 2}\n' * 30)
    (folder / "mixed.jsonl").write_text('{"en": 1, "de": "a"}\n{"en": "", "de": "a"}\n' * 15)
    (folder / "nested.jsonl").write_text('{"translation": {"en": "a", "de": "b"}}\n')
    (folder / "latin.txt").write_bytes("en\tde\na\tb\ncafé\tc\n".encode("latin-1"))
    (folder / "parted.tsv").write_bytes(b"en\tde\na\tb\nc\rd\te\n")
    (folder / "parted.csv").write_bytes(b'en,de\na,b\n"c ""\r"" d",e\nf\rg,h\n')
    (folder / "blank.tsv").write_text("en\tde\n" + "a\t \n" * 30)
    (folder / "same.tsv").write_text("en\tde\n" + "".join(f"A dog.\tEin Hund {i}.\n" for i in range(60)))
    (folder / "three.txt").write_text("a\nb\nc\n")
    (folder / "two.txt").write_text("a\nb\n")
    pq.write_table(pa.table({"en": ["a"], "fr": ["b"]}), folder / "other.parquet")
    repeated = pa.table([["a"], ["b"], ["c"]], names=["en", "de", "en"])
    for name in ("repeated.parquet", "packed.tsv", "packed.jsonl"):
        pq.write_table(repeated, folder / name)
    with zipfile.ZipFile(folder / "zipped.csv", "w") as archive:
        archive.write(folder / "good.tsv")
    shutil.copy(folder / "zipped.csv", folder / "zipped.txt")
    shutil.copy(folder / "good.tsv", folder / "text.parquet")
    for name, separator in (("headless.tsv", "\t"), ("headless.csv", ",")):
        (folder / name).write_text("".join(f"{s}{separator}{t}\n" for s, t in PAIRS))
    (folder / "folder").mkdir()
    json_lines(folder / "folder" / "train.jsonl", flat_rows(PAIRS))
    for name in ("scored", "parted"):
        (folder / f"{name}-folder").mkdir()
        shutil.copy(folder / f"{name}.tsv", folder / f"{name}-folder" / "train.tsv")
    (folder / "null-folder").mkdir()
    (folder / "null-folder" / "train.jsonl").write_text("null\n")


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "missing file": ({"train": "nothing.tsv"}, ["nothing.tsv", "no such file"]),
    "missing validation": ({"train": "good.tsv", "validation": "nothing.tsv"}, ["nothing.tsv", "no such file"]),
    "unknown format": ({"train": "two.txt"}, ["two.txt", ".parquet", "[SOURCES,TARGETS]"]),
    "malformed JSON Lines": ({"train": "cut.jsonl"}, ["cut.jsonl:2", "not JSON"]),
    "malformed JSON": ({"train": "cut.json"}, ["cut.json"]),
    "not UTF-8, JSON Lines": ({"train": "latin.jsonl"}, ["latin.jsonl:2", "byte 12", "UTF-8"]),
    "not UTF-8, TSV": ({"train": "latin.tsv"}, ["latin.tsv:3", "byte 4", "UTF-8"]),
    "not UTF-8, CSV.GZ": ({"train": "latin.csv.gz"}, ["latin.csv.gz:3", "byte 4", "UTF-8"]),
    "not UTF-8, Parquet": ({"train": "latin.parquet"}, ["latin.parquet", "UTF8"]),
    "not UTF-8, text": ({"train": ["two.txt", "latin.txt"]}, ["latin.txt:3", "byte 4", "UTF-8"]),
    "junk JSON Lines": ({"train": "junk.jsonl"}, ["junk.jsonl:"]),
    "junk JSON": ({"train": "junk.json"}, ["junk.json:"]),
    "junk TSV": ({"train": "junk.tsv"}, ["junk.tsv:"]),
    "junk CSV": ({"train": "junk.csv"}, ["junk.csv:"]),
    "junk Parquet": ({"train": "junk.parquet"}, ["junk.parquet"]),
    "junk gzip": ({"train": "junk.tsv.gz"}, ["junk.tsv.gz"]),
    "empty file": ({"train": "empty.csv"}, ["empty.csv: is empty"]),
    "a Parquet file without the column": ({"train": "other.parquet"}, ["no column or language de, but en, fr"]),
    "empty list": ({"train": "none.json"}, ["none.json", "no rows"]),
    "blank lines": ({"train": "blank.jsonl"}, ["blank.jsonl", "no rows"]),
    "only a header": ({"train": "header.tsv"}, ["header.tsv", "no rows"]),
    "a cell too many": ({"train": "ragged.csv"}, ["ragged.csv:3", "more cells than its header"]),
    "a line that would be two": ({"train": "parted.tsv"}, ["parted.tsv:3", "carriage return"]),
    "a line of CSV that would be two": ({"train": "parted.csv"}, ["parted.csv:4", "carriage return"]),
    "two tables": ({"train": ["good.tsv", "good.tsv"]}, ["good.tsv is a table"]),
    "a column without a name": ({"train": "scored.tsv"}, ["scored.tsv", "more cells than its header"]),
    "a column named twice": ({"train": "twice.tsv"}, ["twice.tsv", "en twice"]),
    "a column without a name, in a folder": (
        {"path": "scored-folder", "train": "train"}, ["scored-folder", "more cells than its header"]),
    "a line that would be two, in a folder": ({"path": "parted-folder", "train": "train"}, ["train.tsv:3", "carriage return"]),
    "a row of nothing, in a folder": ({"path": "null-folder", "train": "train"}, ["train.jsonl", "row 1 is null"]),
    "Parquet as TSV": ({"train": "packed.tsv"}, ["packed.tsv: is Parquet"]),
    "Parquet as JSON Lines": ({"train": "packed.jsonl"}, ["packed.jsonl: is Parquet"]),
    "a zip archive as CSV": ({"train": "zipped.csv"}, ["zipped.csv: is a .zip archive"]),
    "a zip archive as text": ({"train": ["zipped.txt", "two.txt"]}, ["zipped.txt: is a .zip archive"]),
    "text as Parquet": ({"train": "text.parquet"}, ["text.parquet: cannot be read as Parquet", "magic bytes"]),
    "a Parquet column twice": ({"train": "repeated.parquet"}, ["repeated.parquet", "en", "2 times"]),
    "no header, TSV": ({"train": "headless.tsv"}, ["names neither en nor de", " | Sie sieht zwei Häuser. If", "add a header"]),
    "no header, CSV": ({"train": "headless.csv"}, ["names neither en nor de", " | Sie sieht zwei Häuser.", "add a header"]),
    "wrong column": ({"train": "good.tsv", "target": "fr"}, ["fr", "en, de", "data.target"]),
    "wrong language": ({"train": "nested.jsonl", "target": "fr"}, ["fr", "de", "en", "data.target"]),
    "only numbers": ({"train": "numbers.jsonl"}, ["0 of 30 rows are clean pairs (30 missing or not text)"]),
    "no text": ({"train": "blank.tsv"}, ["0 of 30 rows are clean pairs (30 empty)", "too few"]),
    "some numbers": ({"train": "mixed.jsonl"}, ["0 of 30 rows are clean pairs", "15 missing or not text", "15 empty"]),
    "pairs that all share a sentence": ({"train": "same.tsv"}, ["60 of 60 rows", "data.validation", "data.overlap=source"]),
    "validation without text": ({"train": "good.tsv", "validation": "blank.tsv"}, ["data.validation", "lacks text"]),
    "nothing left": (
        {"train": "good.tsv", "validation": "good.tsv", "test": "good.tsv"}, ["data.train", "cleaning left none", "192 ov"]),
    "unequal lengths": ({"train": ["two.txt", "three.txt"]}, ["two.txt", "2", "three.txt", "3"]),
    "one text file": ({"train": ["two.txt"]}, ["two.txt: expected", "two text files as [SOURCES,TARGETS]"]),
    "a file as path": ({"path": "good.tsv", "train": "train"}, ["good.tsv", "data.path=null"]),
    "no such local folder": ({"path": "./nowhere", "train": "train"}, ["./nowhere", "no such folder"]),
    "no such split": ({"path": "folder", "train": "dev"}, ["dev", "train"]),
    "no such folder within": ({"path": "folder", "folder": "sub", "train": "train"}, ["folder/sub doesn't contain"]),
    "files with a path": ({"path": "folder", "train": ["a", "b"]}, ["data.path", "data.path=null"]),
    "empty folder": ({"path": "void", "train": "train"}, ["void"]),
    "a cache that is the data": ({"path": "cache", "train": "train"}, ["data.cache", "is data.path"]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_one_line(tmp_path, monkeypatch, case):
    options, words = BAD[case]
    make_bad_files(tmp_path)
    for name in ("void", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        prepared_corpus(tmp_path / "cache", **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert not [path for path in (tmp_path / "cache").glob("*") if path.name[0] != "."]


def test_a_list_of_one_file_is_that_file():
    assert data_config(train=["few.tsv"]) == data_config(train="few.tsv")


def test_a_folder_that_has_gone_is_no_id_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpora" / "mine").mkdir(parents=True)
    assert [hub_id(path) for path in ("someone/dataset", "dataset")] == ["someone/dataset", "dataset"]
    assert not any(map(hub_id, ("corpora/mine", "data/tatoeba", "./mine", "../a/b", "~/mine", str(tmp_path / "gone"), "a/b/c")))


def test_a_saved_dataset_names_its_splits(tmp_path):
    datasets.DatasetDict({"train": datasets.Dataset.from_list(flat_rows(PAIRS))}).save_to_disk(tmp_path / "saved")
    with pytest.raises(UserError, match=r"dev.*train"):
        read(data_config(tmp_path, path=str(tmp_path / "saved"), train="dev"), "train")


# Cleaning

ROWS = st.lists(st.tuples(st.none() | WORDS, st.none() | WORDS), min_size=1, max_size=40)


@settings(max_examples=25)
@given(train=ROWS, validation=st.none() | ROWS, test=st.none() | ROWS, limit=st.none() | st.integers(1, 30))
def test_every_row_is_kept_or_counted_and_no_sentence_crosses(tmp_path_factory, train, validation, test, limit):
    folder = tmp_path_factory.mktemp("rows")
    rows = {"train": [*train, *PAIRS[:15], *PAIRS[:15]], "validation": validation, "test": test}
    files: dict[str, str | None] = {}
    for split, pairs in rows.items():
        columns = {"en": [s for s, _ in pairs or []], "de": [t for _, t in pairs or []]}
        pq.write_table(pa.table(columns, schema=pa.schema({"en": pa.string(), "de": pa.string()})), folder / f"{split}.parquet")
        files[split] = f"{folder}/{split}.parquet" if pairs is not None else None
    options = data_config(folder / "cache", **files, limit=limit, holdout=2, max_characters=40, max_ratio=1.5)
    given_splits = [split for split in ("validation", "test") if rows[split] is not None]
    if any(not any((s or "").strip() and (t or "").strip() for s, t in rows[split] or []) for split in given_splits):
        with pytest.raises(UserError, match="lacks text"):
            load_split(options, "train")
        return
    kept = {split: pairs_of(load_split(options, split)) for split in SPLITS}
    report = data.load_report(data.clean_splits(options))["splits"]
    for split, counts in report.items():
        assert counts["read"] == counts["kept"] + sum(counts["dropped"].values())
        assert counts["kept"] == len(kept[split])
        assert counts["examples"].keys() == counts["dropped"].keys()
        assert all(len(counts["examples"][cause]) == min(EXAMPLES, count) for cause, count in counts["dropped"].items())
    # Cut splits take their rows from train; each row of train is read in one split alone.
    assert sum(report[split]["read"] for split in SPLITS if split not in given_splits) == len(rows["train"])
    for split in given_splits:
        assert report[split]["read"] == len(rows[split])
        assert kept[split] == [(s, t) for s, t in rows[split] if (s or "").strip() and (t or "").strip()]
    assert len(kept["train"]) <= (limit or len(rows["train"]))
    for side in (0, 1):
        sentences = {split: {same_sentence(pair[side]) for pair in kept[split]} for split in SPLITS}
        assert not sentences["train"] & (sentences["validation"] | sentences["test"])
        if len(given_splits) < 2:
            assert not sentences["validation"] & sentences["test"]


def test_causes_and_their_examples(tmp_path):
    long, odd = ("x" * 201, "y" * 201), ("Hi", "z" * 60)
    bad = [(None, "a"), (" ", "b"), long, odd, PAIRS[0], ("SHE  sees two houses.", "new"), ("new", "ｓie sieht zwei häuser.")]
    json_lines(tmp_path / "train.jsonl", flat_rows([*PAIRS[1:], PAIRS[5], *bad, ("Tom", "Tom"), ("One more", "Noch eins")]))
    json_lines(tmp_path / "held.jsonl", flat_rows(PAIRS[:1]))
    files = dict.fromkeys(("validation", "test"), f"{tmp_path}/held.jsonl")
    corpus = prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/train.jsonl", **files, limit=192)
    counts = corpus.report["splits"]["train"]
    assert counts["dropped"] == {
        "missing or not text": 1, "empty": 1, "too long": 1, "length ratio": 1, "duplicate": 1,
        "overlap with validation or test": 3, "beyond data.limit": 1}
    assert counts["examples"]["missing or not text"] == [[None, "a"]]
    assert counts["examples"]["length ratio"] == [list(odd)]
    assert pairs_of(corpus.train) == [*PAIRS[1:], ("Tom", "Tom")]
    said = describe(corpus.report)
    assert said.splitlines()[0].startswith("train      192 of 201 pairs; dropped: ")
    for cause, count in counts["dropped"].items():
        assert f"{count} {cause}" in said
    assert counts["copied"] == {"count": 1, "examples": [["Tom", "Tom"]]}


def test_copied_sources_are_counted_dropped_or_not(tmp_path):
    copies = [(f"Copy {n}.", f"COPY  {n}.") for n in range(30)]
    long = ("x" * 201, "x" * 201)  # dropped
    files = {name: str(json_lines(tmp_path / f"{name}.jsonl", flat_rows(rows))) for name, rows in {
        "train": [*PAIRS, *copies, copies[0], long], "test": [*PAIRS[:9], ("Same", "Same"), ("", "")]}.items()}
    report = prepared_corpus(tmp_path / "cache", **files).report
    copied = {split: counts["copied"] for split, counts in report["splits"].items()}
    assert copied["train"]["count"] + copied["validation"]["count"] == len(copies) + 2
    assert [*map(str.split, copied["train"]["examples"][0])] == [["Copy", "0."], ["COPY", "0."]]
    assert len(copied["train"]["examples"]) == EXAMPLES
    assert copied["test"] == {"count": 1, "examples": [["Same", "Same"]]}
    train, _, test = describe(report).splitlines()
    assert f"; {copied['train']['count']} copied from the source" in train
    assert "1 copied from the source" in test
    plain = prepared_corpus(tmp_path / "cache", train=str(write_pairs(tmp_path / "plain.tsv", PAIRS)))
    assert "copied" not in describe(plain.report)


def test_sources_of_several_sentences_are_counted(tmp_path):
    """By this share, and this length, a run knows which lines to split."""
    two = [(f"{a} {b}", f"{c} {d}") for (a, c), (b, d) in zip(PAIRS[:30], PAIRS[30:60], strict=True)]
    files = {"train": str(write_pairs(tmp_path / "train.tsv", two + PAIRS[60:])), "validation": None, "test": None}
    corpus = prepared_corpus(tmp_path / "cache", **files, holdout=10)
    train, sources = corpus.report["splits"]["train"], corpus.train["source"]
    assert train["source_several"] == pytest.approx(sum(text.count(".") > 1 for text in sources) / len(sources))
    assert train["source_several"] > 0.1
    assert np.mean(np.array(corpus.train["source_length"]) > train["source_long"]) <= 0.01


@pytest.mark.parametrize(("row", "cause"), [
    ("a\t", "empty"), ("a\t" + "b" * 201, "too long"), ("a\t" + "b" * 60, "length ratio")])
def test_rows_too_bad_to_cut_from_are_told_by_cause(tmp_path, row, cause):
    (tmp_path / "train.tsv").write_text("en\tde\n" + f"{row}\n" * 500)
    with pytest.raises(UserError, match=rf"0 of 500 rows are clean pairs \(500 {cause}\), too few to cut a test split"):
        prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/train.tsv")


def test_the_tag_of_a_language_counts_as_no_text_of_the_source(tmp_path):
    odd = ("Go!", "Geh jetzt sofort nach Hause, mein Kind.")
    for name, target in (("short", "x"), ("long", "as_it_is_said_in_a_place_of_a_long_name")):
        json_lines(tmp_path / f"{name}.jsonl", [{"en": en, "de": de, target: de} for en, de in [*PAIRS, odd]])
        options = {"train": str(tmp_path / f"{name}.jsonl"), "target": f"de+{target}"}
        counts = prepared_corpus(tmp_path / "cache", **options).report["splits"]["train"]
        assert counts["dropped"]["length ratio"] == 2


def test_pairs_too_long_for_a_batch_are_dropped_from_train_alone(tmp_path):
    long = (" ".join(["tree"] * 38), " ".join(["Baum"] * 38))
    write_pairs(tmp_path / "train.tsv", [*PAIRS, long])
    write_pairs(tmp_path / "held.tsv", [(long[0] + " now", long[1] + " nun")])
    held = {"validation": f"{tmp_path}/held.tsv", "test": f"{tmp_path}/held.tsv"}
    options = data_config(tmp_path / "cache", train=f"{tmp_path}/train.tsv", **held, max_characters=1000)
    corpus = prepare(options, tokenizer_config(), max_tokens=30)
    counts = corpus.report["splits"]["train"]
    assert counts["dropped"] == {TOO_LONG: 1}
    assert counts["examples"][TOO_LONG] == [list(long)]
    assert len(corpus.train) == counts["kept"] == len(PAIRS)
    assert len(corpus.test) == 1
    with pytest.raises(UserError, match=r"more than 2 tokens: raise train.batch_tokens"):
        prepare(options, tokenizer_config(), max_tokens=2)


def test_a_pair_without_positions_is_as_much_too_long():
    learned = ["model.positions=learned", "model.max_positions=20"]
    assert run_config(*learned, "train.batch_tokens=300").longest_pair() == 20
    assert run_config(*learned, "train.batch_tokens=15").longest_pair() == 15
    assert run_config("model.max_positions=20", "train.batch_tokens=300").longest_pair() == 300


def test_what_is_unknown_to_the_tokenizer_is_said(tmp_path):
    write_pairs(tmp_path / "train.tsv", PAIRS)
    write_pairs(tmp_path / "held.tsv", [("日本", "Japan")])
    held = {"validation": f"{tmp_path}/held.tsv", "test": f"{tmp_path}/held.tsv"}
    options = data_config(tmp_path / "cache", train=f"{tmp_path}/train.tsv", **held)
    corpus = prepare(options, tokenizer_config(byte_fallback=False, vocab_size=60), max_tokens=100)
    assert corpus.report["splits"]["test"]["source_unknown"] > 0
    assert corpus.report["splits"]["train"]["source_unknown"] == 0
    assert "unknown" in describe(corpus.report).splitlines()[2]


# Cutting


@settings(max_examples=10)
@given(seed=st.randoms(use_true_random=False))
def test_the_cut_depends_on_the_pairs_not_on_their_order(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("order")
    shuffled = seed.sample(PAIRS, len(PAIRS))
    for name, pairs in (("a", PAIRS), ("b", shuffled)):
        write_pairs(folder / f"{name}.tsv", pairs)
    for split in ("validation", "test"):
        a, b = (load_split(data_config(folder / "cache", train=f"{folder}/{name}.tsv"), split) for name in "ab")
        assert pairs_of(a) == pairs_of(b)


def test_more_rows_move_few_held_out_pairs(tmp_path):
    numbered = [(f"{i} {s}", f"{i} {t}") for i in range(10) for s, t in PAIRS]
    write_pairs(tmp_path / "a.tsv", numbered)
    write_pairs(tmp_path / "b.tsv", [(f"new {s}", f"neu {t}") for s, t in numbered[:50]] + numbered)
    options = [data_config(tmp_path, train=f"{tmp_path}/{name}.tsv", holdout=90) for name in "ab"]
    before, after = (pairs_of(load_split(option, "test")) for option in options)
    assert len(set(before) & set(after)) > 75


def test_a_small_corpus_gives_a_tenth_and_says_so(tmp_path):
    write_pairs(tmp_path / "a.tsv", [(f"{i} {s}", f"{i} {t}") for i, (s, t) in enumerate(PAIRS)] + [("", "x")] * 500)
    corpus = prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/a.tsv", holdout=50)
    assert (len(corpus.validation), len(corpus.test)) == (19, 19)
    assert len(corpus.train) == len(PAIRS) - 38
    assert "fewer than data.holdout=50" in describe(corpus.report)


# Tokenising


@pytest.mark.parametrize("joint", [True, False])
def test_tokens_belong_to_their_text(tmp_path, joint):
    write_pairs(tmp_path / "a.tsv", PAIRS)
    subwords = tokenizer_config(joint=joint, vocab_size=320 if joint else 290)
    corpus = prepare(data_config(tmp_path / "cache", train=f"{tmp_path}/a.tsv"), subwords, max_tokens=100)
    assert (corpus.source_tokenizer is corpus.target_tokenizer) == joint
    assert (corpus.source_tokenizer.model == corpus.target_tokenizer.model) == joint
    for split in SPLITS:
        rows = getattr(corpus, split)
        for side, tokenizer in (("source", corpus.source_tokenizer), ("target", corpus.target_tokenizer)):
            ids = rows[f"{side}_ids"]
            assert list(ids) == tokenizer.encode(rows[side])
            assert all(sequence[-1] == EOS_ID for sequence in ids)
            assert list(rows[f"{side}_length"]) == list(map(len, ids))
            assert corpus.report["splits"][split][f"{side}_tokens"] == sum(map(len, ids))
            assert rows.features[f"{side}_ids"] == datasets.List(datasets.Value("int32"))


def test_the_tokenizer_never_sees_held_out_text(tmp_path):
    write_pairs(tmp_path / "train.tsv", PAIRS)
    for name, word in (("a", "kiwi"), ("b", "zebra")):
        write_pairs(tmp_path / f"{name}.tsv", [(f"A {word} is here.", f"Hier ist {word}.")] * 20)
    a, b = (prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/train.tsv", validation=f"{tmp_path}/{name}.tsv",
                     test=f"{tmp_path}/{name}.tsv") for name in "ab")
    assert a.source_tokenizer.model == b.source_tokenizer.model


# The cache


def count_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists the parts that are worked out, rather than taken from the cache, from now on."""
    done: list[str] = []
    for name in ("_write_splits", "_tokenise"):
        work = getattr(data, name)
        monkeypatch.setattr(data, name, lambda *args, name=name, work=work: (done.append(name), work(*args))[1])
    return done


def test_a_second_start_takes_all_from_the_cache(tmp_path, monkeypatch):
    write_pairs(tmp_path / "a.tsv", PAIRS)
    options = {"train": f"{tmp_path}/a.tsv"}
    fresh = prepared_corpus(tmp_path / "cache", **options)
    done = count_work(monkeypatch)
    monkeypatch.setattr(data, "read", None)
    began = time.perf_counter()
    again = prepared_corpus(tmp_path / "cache", **options)
    assert time.perf_counter() - began < 1
    assert not done
    for split in SPLITS:
        assert getattr(again, split).to_dict() == getattr(fresh, split).to_dict()
        assert pairs_of(load_split(data_config(tmp_path / "cache", **options), split)) == pairs_of(getattr(fresh, split))
    assert again.report == fresh.report
    assert again.source_tokenizer.model == fresh.source_tokenizer.model


def test_a_cache_within_the_data_is_no_part_of_them(tmp_path, monkeypatch):
    write_pairs(tmp_path / "train.tsv", PAIRS)
    options = {"path": str(tmp_path), "train": "train"}
    prepared_corpus(tmp_path / "cache", **options)
    done = count_work(monkeypatch)
    prepared_corpus(tmp_path / "cache", **options)
    assert not done
    write_pairs(tmp_path / "train.tsv", PAIRS[:150])
    assert sum(prepared_corpus(tmp_path / "cache", **options).report["splits"][split]["kept"] for split in SPLITS) == 150


@pytest.mark.parametrize("file", ["report.json", "train.arrow", "validation.arrow"])
@pytest.mark.parametrize("kind", ["text", "tokens"])
@pytest.mark.parametrize("damage", [0, 100, "a bit", "64 bytes", "a FIFO"])
def test_a_damaged_cache_is_named(tmp_path, kind, file, damage):
    options = {"train": str(write_pairs(tmp_path / "train.tsv", PAIRS))}
    prepared_corpus(tmp_path / "cache", **options)
    [folder] = (tmp_path / "cache").glob(f"__{kind}-*")
    for tokens in (tmp_path / "cache").glob("__tokens-*" if kind == "text" else "none"):
        shutil.rmtree(tokens)
    if isinstance(damage, int):
        os.truncate(folder / file, damage)
    elif damage == "a FIFO":
        (folder / file).unlink()
        os.mkfifo(folder / file)
    else:
        content = bytearray((folder / file).read_bytes())
        middle = len(content) // 2
        content[middle:middle + 64] = b"\xff" * 64 if damage == "64 bytes" else bytes([content[middle] ^ 1]) + content[
            middle + 1:middle + 64]
        (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{folder}: damaged")):
        prepared_corpus(tmp_path / "cache", **options)
    shutil.rmtree(folder)
    prepared_corpus(tmp_path / "cache", **options)


DATA_CHANGES = [
    {"limit": 50}, {"holdout": 4}, {"max_characters": 150}, {"max_ratio": 2.5}, {"source": "de", "target": "en"},
    {"validation": "b.tsv"}, {"test": "b.tsv"}, {"train": "c.tsv"}, {"config": "x"}, {"revision": "x"}, {"folder": "x"}]
TOKENIZER_CHANGES = [
    {"model_type": "bpe"}, {"vocab_size": 310}, {"joint": False, "vocab_size": 290}, {"byte_fallback": False, "vocab_size": 60},
    {"character_coverage": 0.99}, {"split_digits": True}]


@pytest.mark.parametrize("change", DATA_CHANGES, ids=str)
def test_any_other_data_option_misses_the_cache(tmp_path, monkeypatch, change):
    for name, pairs in (("a", PAIRS[:190]), ("b", PAIRS[190:]), ("c", PAIRS)):
        write_pairs(tmp_path / f"{name}.tsv", pairs)
    monkeypatch.chdir(tmp_path)
    load_split(data_config(tmp_path / "cache", train="a.tsv"), "train")
    done = count_work(monkeypatch)
    load_split(data_config(tmp_path / "cache", **{"train": "a.tsv"} | change), "train")
    assert done == ["_write_splits"]


def test_other_tokenizer_or_limit_reuses_cleaned_data_only(tmp_path, monkeypatch):
    write_pairs(tmp_path / "a.tsv", PAIRS)
    options = data_config(tmp_path / "cache", train=f"{tmp_path}/a.tsv")
    prepare(options, tokenizer_config(), max_tokens=100)
    done = count_work(monkeypatch)
    for changes in TOKENIZER_CHANGES:
        prepare(options, tokenizer_config(**changes), max_tokens=100)
    prepare(options, tokenizer_config(sampling=0.1), max_tokens=100)  # which training alone reads, as it does augment
    prepare(dataclasses.replace(options, augment=AugmentConfig(lower=0.1)), tokenizer_config(), max_tokens=100)
    prepare(options, tokenizer_config(), max_tokens=99)
    assert done == ["_tokenise"] * (len(TOKENIZER_CHANGES) + 1)


CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {}\n---\n"


def write_folder(folder: Path, pairs: list[tuple[str, str]], card: str = CARD.format("train.tsv")) -> Path:
    folder.mkdir(exist_ok=True)
    if card:
        (folder / "README.md").write_text(card)
    return write_pairs(folder / "train.tsv", pairs)


@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize("card", [CARD.format("train.tsv"), ""])
def test_a_local_folder_is_never_read_from_a_cache(tmp_path, card, window):
    def rows(folder: Path) -> list[tuple[str, str]]:
        options = data_config(tmp_path / "cache", path=str(folder), train="train", window=window, validation="v", test="t")
        return pairs_of(read(options, "train"))

    for pairs in (PAIRS[:100], PAIRS):
        write_folder(tmp_path / "one", pairs, card)
        assert rows(tmp_path / "one") == pairs
    write_folder(tmp_path / "two", PAIRS[:50], card)
    assert rows(tmp_path / "two") == PAIRS[:50]
    (tmp_path / "one" / "train.tsv").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(UserError, match=r"train.tsv: its first line names neither en nor de"):
        rows(tmp_path / "one")
    assert not list(Path(datasets.config.HF_DATASETS_CACHE).iterdir())


@pytest.mark.parametrize("change", ["content", "time"])
@pytest.mark.parametrize("kind", ["file", "folder", "card"])
def test_only_changed_content_misses_the_cache(tmp_path, kind, change):
    file = write_folder(tmp_path / "data", PAIRS, CARD.format("train.tsv") if kind == "card" else "")
    named = {"train": str(file)} if kind == "file" else {"path": f"{tmp_path}/data", "train": "train"}
    options = data_config(tmp_path / "cache", **named)
    before = pairs_of(load_split(options, "train"))
    stat = file.stat()
    write_pairs(file, [(s.replace("She", "Eve"), t) for s, t in PAIRS] if change == "content" else PAIRS)  # the same size
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + (change == "time") * 10_000_000))
    assert (pairs_of(load_split(options, "train")) == before) == (change == "time")
    assert len(list((tmp_path / "cache").glob("__text-*"))) == 1 + (change == "content")


def test_a_saved_dataset_that_changed_misses_the_cache(tmp_path):
    saved = tmp_path / "saved"
    options = data_config(tmp_path / "cache", path=str(saved), train="train")
    read_before = set[str]()
    for subject in ("She", "Eve"):  # of the same size
        shutil.rmtree(saved, ignore_errors=True)
        rows = flat_rows([(source.replace("She", subject), target) for source, target in PAIRS])
        datasets.Dataset.from_list(rows).save_to_disk(saved)
        for file in saved.iterdir():
            os.utime(file, ns=(0, 0))
        texts = set(load_split(options, "train")["source"])
        assert texts != read_before
        read_before = texts


def test_data_that_change_while_read_are_refused(tmp_path, monkeypatch):
    file = write_pairs(tmp_path / "a.tsv", PAIRS[:100])
    monkeypatch.setattr(data, "read", lambda *args: (read(*args), write_pairs(file, PAIRS))[0])
    with pytest.raises(UserError, match="changed while they were read"):
        load_split(data_config(tmp_path / "cache", train=str(file)), "train")
    assert not list((tmp_path / "cache").glob("__*"))


@pytest.mark.parametrize("place", [
    "../elsewhere/train.tsv", "{}/elsewhere/train.tsv", "../else*/*", "./../elsewhere/train.tsv", "https://127.0.0.1/elsewhere"])
@pytest.mark.parametrize("window", [None, 10])
def test_a_card_names_no_files_outside_of_its_folder(tmp_path, place, window):
    write_folder(tmp_path / "elsewhere", PAIRS)
    write_folder(tmp_path / "data", PAIRS, CARD.format(place.format(tmp_path)))
    options = data_config(
        tmp_path / "cache", path=f"{tmp_path}/data", train="train", window=window, validation="train", test="train")
    for attempt in (read, load_split):
        with pytest.raises(UserError, match=r"else.*, which lies outside"):
            attempt(options, "train")


def test_a_failed_preparation_leaves_nothing(tmp_path, monkeypatch):
    write_pairs(tmp_path / "a.tsv", PAIRS)
    monkeypatch.setattr(data, "save_report", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/a.tsv")
    monkeypatch.undo()
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] in ([], [".lock"])
    assert len(prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/a.tsv").train) == len(PAIRS) - 10


def test_a_killed_preparation_leaves_no_broken_cache(tmp_path):
    """Killed at the worst moment: all but the report is written."""
    write_pairs(tmp_path / "a.tsv", PAIRS)
    program = (
        "import os, sys; from pathlib import Path; from tests.support.corpora import prepared_corpus\n"
        "from translator.data import preparation as data\n"
        "data.save_report = lambda *_: os.kill(os.getpid(), 9)\n"
        "prepared_corpus(Path(sys.argv[1]) / 'cache', train=sys.argv[1] + '/a.tsv')")
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home")})
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    partial = [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert partial
    assert all(name.endswith(".partial") for name in partial)
    assert len(prepared_corpus(tmp_path / "cache", train=f"{tmp_path}/a.tsv").train) == len(PAIRS) - 10
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_second_preparation_waits_for_the_first(tmp_path):
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        time.sleep(0.3)
        (folder / "done").touch()

    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: cached_folder(tmp_path / "cache", "text-x", make), range(2)))
    assert len(made) == 1
    assert folders == [tmp_path / "cache" / "text-x"] * 2
    assert (folders[0] / "done").is_file()


def test_the_preset_for_own_files_asks_for_them():
    with pytest.raises(UserError, match=r"data\.train: names no data\. Give data\.train=FILE"):
        run_config("data=files")


@pytest.mark.skipif(not (SHARED_DATASETS / "multi30k").is_dir(), reason="../shared/datasets/multi30k is not here")
def test_multi30k_reads_whole(tmp_path):
    folder = SHARED_DATASETS / "multi30k"
    files = {split: str(folder / f"{split}.jsonl.gz") for split in SPLITS}
    options = data_config(tmp_path / "cache", **files)
    by_file = {split: pairs_of(load_split(options, split)) for split in SPLITS}
    assert (len(by_file["validation"]), len(by_file["test"])) == (1014, 1000)
    assert 28_000 < len(by_file["train"]) <= 29_000
    by_path = data_config(tmp_path / "cache", path=str(folder), **{split: split for split in SPLITS})
    assert {split: pairs_of(load_split(by_path, split)) for split in SPLITS} == by_file
