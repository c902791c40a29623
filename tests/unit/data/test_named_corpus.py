"""Corpora by name: downloaded once, verified and never half, from a loopback copy of the servers."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import io
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from huggingface_hub import DatasetCard

from tests.support.commands import assert_user_error
from tests.support.corpora import PAIRS, data_config, pairs_of
from tests.support.corpus_server import OPUS, CorpusServer, corpus_server, moses_zip, write_mtdata_index, write_opus_index
from tests.support.forked import forks, run_script
from translator.config.data import DataConfig
from translator.data import mtdata_index, opus
from translator.data.named_corpus import corpus_files
from translator.data.sources import identity, read, windows
from translator.export.command import _dataset_card
from translator.runtime.errors import UserError

opus_get = pytest.importorskip("opustools.opus_get", reason="NOT TESTED, corpora by name: pip install '.[corpora]'")
assert importlib.util.find_spec("mtdata"), "not imported here: it reads MTDATA then"

NEWEST = OPUS.format("Tatoeba", "v2022-03-03", "de", "en")
ROWS = [("Tatoeba", "v2022-03-03", "de", "en", "True"), ("Tatoeba", "v2", "de", "en", "False"),
        ("Tatoeba", "v2", "en", "fr", "False"), ("Books", "v1", "en", "fr", "True")]
NEWS = "/data.statmt.org/news-commentary/v16/training/news-commentary-v16.de-en.tsv.gz"


def archive(pairs: list[tuple[str, str]]) -> bytes:
    return moses_zip("Tatoeba", {"en": [source for source, _ in pairs], "de": [target for _, target in pairs]})


@pytest.fixture
def server(monkeypatch) -> Iterator[CorpusServer]:
    with corpus_server() as server:
        monkeypatch.setenv("CORPORA_MIRROR", server.url)
        server.files[NEWEST] = archive(PAIRS)
        server.files[OPUS.format("Tatoeba", "v2", "de", "en")] = archive(PAIRS[:9])
        server.files[NEWS] = gzip.compress("".join(f"{target}\t{source}\n" for source, target in PAIRS).encode())
        yield server


@pytest.fixture
def tatoeba(tmp_path) -> DataConfig:
    write_opus_index(tmp_path / "corpora", ROWS)
    return data_config(tmp_path / "cache", corpus="Tatoeba", downloads=str(tmp_path / "corpora"))


@pytest.fixture(scope="module")
def news(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Options for an mtdata id; mtdata reads the small index from here on."""
    home = tmp_path_factory.mktemp("mtdata")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTDATA", str(home))
        with mtdata_index._quiet():
            from mtdata.entry import Entry
        write_mtdata_index(home, [
            Entry("Statmt-news_commentary-16-deu-eng", f"http:/{NEWS}", cite=("kocmi-etal-2023-findings",)),
            Entry("OPUS-books-v1-deu-eng", "https://example.org/a.txt.zip", in_paths=["*.de", "*.en"], in_ext="txt")])
        yield {"corpus": "Statmt-news_commentary-16-deu-eng"}


def leftovers(config: DataConfig) -> list[str]:
    """What is below the folder for downloads besides complete corpora and the index."""
    return sorted(path.name for path in Path(config.downloads).rglob(".*") if path.suffix != ".db")


def test_a_corpus_is_read_in_either_direction(tatoeba, server):
    assert pairs_of(read(tatoeba, "train")) == PAIRS
    there = dataclasses.replace(tatoeba, source="de", target="en")
    assert pairs_of(read(there, "train")) == [(target, source) for source, target in PAIRS]
    assert len(server.requests) == 1
    assert leftovers(tatoeba) == []


def test_the_card_has_licence_source_and_citation(tatoeba, server):
    folder = Path(corpus_files(tatoeba)[0]).parent
    card = DatasetCard.load(folder / "README.md")
    assert card.data.license_name == "CC-BY 2.0 FR"
    assert f"{len(PAIRS)} pairs" in card.text
    assert f"https:/{NEWEST}" in card.text
    assert "Tiedemann" in card.text
    assert "Cite its authors" in card.text
    assert (folder / "LICENSE").read_text() == "The licence of a test.\n"
    assert _dataset_card(tatoeba) == ("other", None)  # for the card of an exported model


def test_a_second_start_needs_neither_network_nor_index(tatoeba, server, monkeypatch):
    first = corpus_files(tatoeba)
    monkeypatch.setitem(sys.modules, "opustools.opus_get", None)
    monkeypatch.setenv("CORPORA_MIRROR", "http://127.0.0.1:9")
    assert corpus_files(tatoeba) == first


def test_a_version_may_be_older_or_newer_than_the_index(tatoeba, server):
    def version(name: str) -> DataConfig:
        return dataclasses.replace(tatoeba, version=name)

    server.files[OPUS.format("Tatoeba", "v2030", "de", "en")] = archive(PAIRS[:7])
    assert len(read(version("v2"), "train")) == 9
    assert len(read(version("v2030"), "train")) == 7
    with pytest.raises(UserError, match="v3/moses/de-en.txt.zip: download failed: HTTP Error 404"):
        corpus_files(version("v3"))


def test_other_splits_come_from_data_path(tatoeba, server, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "dev.jsonl").write_text('{"en": "A dog.", "de": "Ein Hund."}\n')
    mixed = dataclasses.replace(tatoeba, path=str(folder), validation="validation")
    assert pairs_of(read(mixed, "validation")) == [("A dog.", "Ein Hund.")]
    assert len(read(mixed, "train")) == len(PAIRS)
    assert {Path(name).name for name, _ in identity(mixed)} == {"en.txt", "de.txt", "dev.jsonl"}
    streamed = dataclasses.replace(mixed, test="validation", window=50)
    assert identity(streamed) == identity(mixed)
    assert pairs_of(next(windows(streamed))) == PAIRS[:50]


def test_a_broken_connection_is_resumed(tatoeba, server):
    server.cut = 300
    assert pairs_of(read(tatoeba, "train")) == PAIRS
    assert [asked for _, asked in server.requests[:3]] == [None, "bytes=300-", "bytes=600-"]


def test_a_server_without_ranges_starts_again(tatoeba, server):
    server.ranges, server.cut = False, 300
    with pytest.raises(UserError, match="download failed: the connection ended early"):
        corpus_files(tatoeba)
    server.cut = None
    assert pairs_of(read(tatoeba, "train")) == PAIRS


def test_a_killed_download_is_resumed(tatoeba, server):
    server.cut, server.hang = 400, True
    process = forks().Process(target=start, args=(tatoeba, server.url))
    process.start()
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in Path(tatoeba.downloads).rglob("*.partial")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert not list(Path(tatoeba.downloads).rglob("README.md"))
    server.cut, server.hang = None, False
    assert pairs_of(read(tatoeba, "train")) == PAIRS
    assert server.requests[-1] == (NEWEST, "bytes=400-")


def start(config: DataConfig, mirror: str, most_bytes: int | None = None) -> None:
    os.environ["CORPORA_MIRROR"] = mirror
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        corpus_files(config)
    except UserError as error:
        os._exit(2 if "cannot be written: File too large" in str(error) else 3)


@pytest.mark.parametrize("most", [500, 3000])  # for the archive, and for the texts in it
def test_a_full_disk_is_a_user_error_and_keeps_the_rest(tatoeba, server, most):
    assert most < 1000 or len(server.files[NEWEST]) < most
    process = forks().Process(target=start, args=(tatoeba, server.url, most))
    process.start()
    process.join()
    assert process.exitcode == 2
    server.requests.clear()
    assert pairs_of(read(tatoeba, "train")) == PAIRS
    assert [asked for _, asked in server.requests] == (["bytes=500-"] if most == 500 else [])


@pytest.mark.parametrize(("damage", "words"), [
    (lambda good: good[:700] + bytes([good[700] ^ 255]) + good[701:], "damaged: "), (lambda good: b"<html>", "not a zip file"),
    (lambda good: moses_zip("Tatoeba", {"en": ["One.", "Two."], "de": ["Eins."]}), "2 lines of en, and 1 of de")])
def test_a_damaged_archive_is_never_installed(tatoeba, server, damage, words):
    good = server.files[NEWEST]
    server.files[NEWEST] = damage(good)
    with pytest.raises(UserError, match=words):
        corpus_files(tatoeba)
    assert not list(Path(tatoeba.downloads).rglob("README.md"))
    server.files[NEWEST] = good
    assert pairs_of(read(tatoeba, "train")) == PAIRS


@pytest.mark.parametrize(("changes", "words"), [
    ({"corpus": "tatoba"}, "data.corpus=tatoba: no such corpus; did you mean Tatoeba?"),
    ({"corpus": "Books"}, "data.corpus=Books: has no pair en-de, but en with fr."),
    ({"corpus": "Books", "source": "xx", "target": "yy"}, "has no pair xx-yy, but neither language"),
    ({"corpus": "../x"}, "data.corpus: must be a name"), ({"version": "a/b"}, "data.version: must be a name"),
    ({"source": "en+fr"}, "data.source: must be the code of one language"),
    ({"source": "it's"}, "data.source: must be the code of one language"),
    ({"corpus": "Statmt-europarl-10-deu-eng", "version": "v1"}, "data.version: is part of an mtdata id")])
def test_what_does_not_exist_is_a_user_error(tatoeba, changes, words):
    with pytest.raises(UserError) as caught:
        corpus_files(data_config(**{"corpus": "Tatoeba", "downloads": tatoeba.downloads} | changes))
    assert words in str(caught.value)


def test_no_network_is_a_user_error(tatoeba, monkeypatch):
    monkeypatch.setenv("CORPORA_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="Connection refused. Check the network and retry"):
        corpus_files(tatoeba)


def test_a_missing_extra_is_a_user_error(tatoeba, monkeypatch):
    monkeypatch.setitem(sys.modules, "opustools.opus_get", None)
    with pytest.raises(UserError, match=r"is not installed. Install it with .*corpora"):
        corpus_files(tatoeba)


def test_the_index_is_unpacked_whole_or_not_at_all(tmp_path, monkeypatch):
    """opustools would take a file that a killed start left incomplete."""
    monkeypatch.setattr(opus_get, "gzip", SimpleNamespace(open=lambda file: io.BytesIO(b"SQLite, some of it")))
    monkeypatch.setattr("os.fsync", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        opus.list_pair(("en", "de"), tmp_path)
    assert not list(tmp_path.glob("*.db"))


def test_an_mtdata_id_is_read_by_its_languages(tmp_path, server, news):
    config = data_config(tmp_path / "cache", downloads=str(tmp_path), **news)
    assert pairs_of(read(config, "train")) == PAIRS
    assert corpus_files(config)[0].endswith("Statmt-news_commentary-16-deu-eng/eng.txt")
    card = (tmp_path / news["corpus"] / "README.md").read_text()
    assert "@inproceedings{kocmi-etal-2023-findings" in card
    assert 'license_name: "unknown"' in card
    assert leftovers(config) == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"corpus": "Statmt-news_comentary-16-deu-eng"}, "did you mean Statmt-news_commentary-16-deu-eng?"),
    ({"target": "fr"}, "has deu and eng, not en and fr"), ({"source": "xqx"}, "has deu and eng, not xqx and de")])
def test_a_wrong_mtdata_id_is_a_user_error(tmp_path, news, changes, words):
    with pytest.raises(UserError) as caught:
        corpus_files(data_config(downloads=str(tmp_path), **news | changes))
    assert words in str(caught.value)


def test_the_commands_list_and_read_corpora(tatoeba, server, news, tmp_path):
    environment = {"MTDATA": os.environ["MTDATA"], "CORPORA_MIRROR": server.url}
    downloads = f"data.downloads={tatoeba.downloads}"

    def script(name: str, *options: str):
        return run_script(name, options, b"", 100, environment)

    shown = script("data_report", "data=opus", "data.corpus=Tatoeba", downloads, f"data.cache={tmp_path / 'cache'}")
    assert shown.returncode == 0, shown.stderr.decode()
    assert b"train: " in shown.stdout
    listed = script("corpora", "source=en", "target=de", f"downloads={tatoeba.downloads}")
    lines = listed.stdout.decode().splitlines()
    assert lines[1].split() == ["Tatoeba", "313,176", "9.9", "CC-BY", "2.0", "FR"]
    assert lines[-1] == "Statmt-news_commentary-16-deu-eng"
    assert max(map(len, lines)) <= 80
    assert_user_error(script("data_report", "data=opus", downloads), "data.train: names no data", "data.corpus")
    assert_user_error(script("corpora", "source=en", "target=xyz", f"downloads={tatoeba.downloads}"), "no corpus has these")
