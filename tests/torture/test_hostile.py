"""Nothing read from a run folder, a checkpoint or a data set runs code, and no path in one leads out of it.

Whoever takes a run folder or data from a stranger gets a UserError or harmless values. Each payload would leave a mark.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.support.commands import assert_user_error
from tests.support.corpora import PAIRS, TRAINING_STATE, cleaned, data_config, write_pairs
from tests.support.paths import ROOT
from translator.data.cleaning import Counts, HeldOut
from translator.data.sources import read
from translator.inference.planning import TrainingStatistics
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import Tracker
from translator.runtime.atomic_files import load_tensors, save_tensors, sealed
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer

TINY = [
    "data=files", "name=run", "model=tiny", "model.d_model=16", "model.num_heads=2", "model.d_ff=16", "model.encoder_layers=1",
    "model.decoder_layers=1", "device=cpu", "precision=fp32", "tokenizer.vocab_size=304", "train.max_epochs=null",
    "train.max_minutes=null", "train.max_updates=2", "train.batch_tokens=2000", "data.holdout=5", "search=greedy"]


class Payload:
    """Unpickled, it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture(autouse=True)
def mark(tmp_path: Path) -> Iterator[Path]:
    """The file that a payload makes where it runs. None may."""
    path = tmp_path / "mark"
    yield path
    assert not path.exists(), "code was run"


@pytest.fixture
def run(tmp_path: Path, run_folder: Path) -> RunFolder:
    shutil.copytree(run_folder, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def refused(load: Callable[[], Any]) -> str:
    """The line that says why something cannot be read."""
    with pytest.raises(UserError) as caught:
        load()
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 2000
    return str(caught.value)


def got_or_refused(load: Callable[[], Any]) -> Any:
    """What was read; None where it was refused in one line."""
    try:
        return load()
    except UserError as error:
        if len(str(error).splitlines()) != 1:
            raise
    return None


def test_a_payload_leaves_its_mark(mark):
    """So that its absence means something."""
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists()
    mark.unlink()


# config.yaml

TAGS = [
    '!!python/object/apply:os.system ["touch {mark}"]', '!!python/object/new:os.system ["touch {mark}"]',
    '!!python/object/apply:subprocess.check_output [["touch", "{mark}"]]', "!!python/name:os.system", "!!python/module:os",
    "!!python/object:os.system {{}}", '!!python/object/apply:eval ["open(\'{mark}\', \'w\')"]', '!!python/tuple ["a"]',
    '!!python/object/apply:pathlib.Path ["{mark}"]']


@pytest.mark.parametrize("tag", TAGS)
def test_tags_make_no_objects(run, mark, tag):
    text = run.config_file.read_text()
    hostile_value = tag.format(mark=mark)
    for hostile in (text.replace("name: test", f"name: {hostile_value}"), hostile_value, text + hostile_value):
        run.config_file.write_text(hostile)
        refused(run.load_config)


@pytest.mark.parametrize("text", [
    "${oc.env:SECRET}", "${oc.decode:${oc.env:SECRET}}", "${oc.create:{a:1}}", "${data.path}", "${hydra:runtime.cwd}",
    "$SECRET", "${oc.env:SECRET", "{{ SECRET }}", "~"])
def test_interpolations_stay_text(run, monkeypatch, text):
    monkeypatch.setenv("SECRET", "hush")
    written = run.config_file.read_text()
    run.config_file.write_text(written.replace("name: test", f"name: '{text}'"))
    assert run.load_config().name == text
    run.config_file.write_text(written.replace("d_model: 32", f"d_model: '{text}'"))
    assert "hush" not in refused(run.load_config)


def test_aliases_of_aliases_take_no_memory(run):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    run.config_file.write_text("\n".join(lines))
    start = time.monotonic()
    assert "alias" in refused(run.load_config)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("hostile", [
    "[" * 100_000, "a: " * 3000, "{" * 5000, "9" * 10_000, "format: 99999999999999999999", "format: .inf", "format: [1]",
    "__class__: x", "__init__: {}", "? !!binary aGk=\n: 1", "- a", "null", "\x00", "--- \n--- \n", "&a [*a]", "!!timestamp x"])
def test_nonsense_as_config_yaml_is_refused(run, hostile):
    run.config_file.write_text(hostile)
    refused(run.load_config)


@pytest.mark.parametrize("change", [
    ("d_ff: 48", "d_ff: 2000000000"), ("d_model: 32", "d_model: 2000000000"), ("d_ff: 48", f"d_ff: {10**30}"),
    ("d_model: 32", "d_model: 1048576"), ("encoder_layers: 2", "encoder_layers: 2000000000")])
def test_impossible_sizes_are_refused_before_allocation(run, change):
    text = run.config_file.read_text()
    assert change[0] in text
    run.config_file.write_text(text.replace(*change))
    refused(lambda: Translator(run.path))


# Tensors


def pickles(mark: Path) -> dict[str, bytes]:
    saved = io.BytesIO()
    torch.save({"w": torch.ones(2), "payload": Payload(mark)}, saved)
    legacy = io.BytesIO()
    torch.save({"payload": Payload(mark)}, legacy, _use_new_zipfile_serialization=False)
    return {
        "pickle": pickle.dumps(Payload(mark)), "text pickle": pickle.dumps(Payload(mark), protocol=0),
        "torch": saved.getvalue(), "old torch": legacy.getvalue()}


@pytest.mark.parametrize("kind", ["pickle", "text pickle", "torch", "old torch"])
def test_a_pickle_by_any_name_is_not_unpickled(run, mark, kind):
    content = pickles(mark)[kind]
    run.save_checkpoint(10, {"w": torch.ones(2)}, {"w": torch.ones(2)}, {"update": 10})
    folder = run.checkpoints.path / "00000010"
    for name in ("state.json", "training.safetensors", "weights.safetensors"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        refused(lambda: run.checkpoints.load(10))
        (folder / name).write_bytes(whole)
    (folder / "weights.safetensors").write_bytes(content)
    refused(lambda: run.checkpoints.average([10]))
    run.outcome_file.write_bytes(content)
    assert run.load_outcome() is None
    run.report_file.write_bytes(content)
    assert TrainingStatistics.from_report(run.load_report()).longest_source is None
    for path in (run.model_file, run.sums_file, run.path / "tokenizer.model", run.config_file):  # each with those before
        path.write_bytes(content)
        refused(lambda: Translator(run.path))


def header(values: Any, *, length: int | None = None, data: bytes = bytes(64)) -> bytes:
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HEADERS = {
    "empty": b"", "no header": struct.pack("<Q", 0), "length of the universe": header({}, length=2**64 - 1),
    "length of a disk": header({}, length=2**40), "negative length": struct.pack("<q", -8) + b"{}",
    "longer by one": header({}, length=67),
    "overlapping": header({"a": tensor("F32", [8], 0, 32), "b": tensor("F32", [8], 16, 48)}, data=bytes(48)),
    "twice the same": header({"a": tensor("F32", [16], 0, 64), "b": tensor("F32", [16], 0, 64)}),
    "past the end": header({"a": tensor("F32", [1000], 0, 4000)}), "a hole": header({"a": tensor("F32", [8], 32, 64)}),
    "backwards": header({"a": tensor("F32", [16], 64, 0)}),
    "too large to count": header({"a": tensor("F32", [2**62, 2**62], 0, 64)}),
    "negative": header(b'{"a": {"dtype": "F32", "shape": [-16], "data_offsets": [0, 64]}}'),
    "unknown type": header({"a": tensor("os.system", [16], 0, 64)}),
    "shape and size differ": header({"a": tensor("F32", [15], 0, 64)}),
    "deep": header(b"[" * 100_000), "no object": header(b"[]"), "not UTF-8": header(b"\xff" * 8),
    "metadata of numbers": header({"__metadata__": {"sha256": 1}, "a": tensor("F32", [16], 0, 64)}),
    "wrong sum": header({"__metadata__": {"sha256": "0"}, "a": tensor("F32", [16], 0, 64)}),
    "no sum and other names": header({"__class__": tensor("F32", [8], 0, 32), "../../x": tensor("F32", [8], 32, 64)})}


@pytest.mark.parametrize("name", HEADERS)
def test_a_lying_safetensors_header_is_refused(run, name):
    run.model_file.write_bytes(HEADERS[name])
    refused(lambda: Translator(run.path))


@pytest.mark.parametrize("dtype", ["F64", "I64", "BOOL", "C64", "F8_E4M3", "F8_E8M0", "F4", "BF16", "U16"])
def test_a_tensor_of_any_type_is_read_or_refused(tmp_path, dtype):
    (tmp_path / "x.safetensors").write_bytes(header({"a": tensor(dtype, [64], 0, 64)}))
    for size in (1, 2, 4, 8, 16):
        (tmp_path / "x.safetensors").write_bytes(header({"a": tensor(dtype, [64 // size], 0, 64)}))
        tensors = got_or_refused(lambda: load_tensors(tmp_path / "x.safetensors"))
        assert tensors is None or list(tensors) == ["a"]


# The text of a run folder


@pytest.mark.parametrize("line", [
    "{sum}  ../../secret", "{sum}  ../secret", "{sum}  {folder}/secret", "{sum}  /etc/passwd", "{sum}  .", "{sum}  ..",
    "{sum}  /"])
def test_sums_of_files_elsewhere_are_not_looked_at(run, tmp_path, monkeypatch, line):
    secret = tmp_path / "secret"
    secret.write_text("x")
    run.sums_file.write_text(line.format(sum="0" * 64, folder=tmp_path) + "\n")
    seen = []
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: seen.append(path.resolve()) or opened(path, *how, **more))
    run.load_tokenizers()
    assert run.path / "tokenizer.model" in seen
    assert all(path.is_relative_to(run.path) for path in seen)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x\n", b"0  \n", b"  \n", b"0 tokenizer.model\n", b"0  tokenizer.model\n"])
def test_sums_that_are_none_are_refused(run, content):
    run.sums_file.write_bytes(content)
    assert "damaged" in refused(run.load_tokenizers)


VALUES = [
    "null", "[]", "5", '"x"', "{}", "[" * 100_000, "1e999", "NaN", "9" * 5000, '{"__class__": "os.system"}',
    '{"splits": {"train": {"source_longest": 1e999}}}', '{"splits": {"train": {"source_longest": [5]}}}', '{"splits": 5}',
    '{"splits": []}',
    '{"splits": {"train": {"source_longest": "x"}}}', '{"sha256": "x", "state": {}}', '{"sha256": null, "state": null}']


@pytest.mark.parametrize("text", VALUES)
def test_any_json_in_a_run_folder_is_refused_or_harmless(run, text):
    run.report_file.write_text(text)
    run.outcome_file.write_text(text)
    assert TrainingStatistics.from_report(run.load_report()).longest_source is None
    run.load_outcome()  # what is no outcome, the trainer takes for none: test_fuzz.py
    assert Translator(run.path)(["She sees two trees."])
    run.save_checkpoint(10, {"w": torch.ones(2)}, {}, {"update": 10})
    (run.checkpoints.path / "00000010" / "state.json").write_text(text)
    assert "damaged" in refused(lambda: run.checkpoints.load(10))


def test_folders_of_other_names_are_no_checkpoints(run):
    run.save_checkpoint(10, {"w": torch.ones(2)}, {}, {"update": 10})
    for name in ("00000010 copy", "1x", "7", "٠٠٠٠٠٠٢٠", "0" * 9 + "1", "9" * 400):
        if len(name) < 255:
            shutil.copytree(run.checkpoints.path / "00000010", run.checkpoints.path / name)
    assert run.checkpoints.resumable() == [10]
    run.checkpoints.prune(resumable=0, weights=[])
    assert not (run.checkpoints.path / "00000010").exists()
    assert (run.checkpoints.path / "00000010 copy" / "state.json").is_file()


@pytest.mark.parametrize("content", [
    b"", b"\x00" * 1000, b"\xff" * 1000, b"\x0a" + b"\xff" * 9 + b"\x01", b"\x0a\xff\xff\xff\xff\x07", b"<html>",
    b"\x12" * 100_000])
def test_junk_is_no_tokenizer(run, content):
    (run.path / "tokenizer.model").write_bytes(content)
    assert "damaged" in refused(lambda: Translator(run.path))
    run.sums_file.unlink()
    assert "tokenizer.model" in refused(lambda: Translator(run.path))
    refused(lambda: Tokenizer(content))


# Links


def test_links_to_devices_and_in_circles_end_at_once(run):
    for path in (run.report_file, run.outcome_file):
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/zero")
    assert TrainingStatistics.from_report(run.load_report()).longest_source is None
    assert run.load_outcome() is None
    assert Translator(run.path)(["She sees two trees."])
    for name in ("model.safetensors", "tokenizer.model", "SHA256SUMS", "config.yaml"):
        for aim in ("/dev/zero", name):
            (run.path / name).unlink()
            (run.path / name).symlink_to(aim)
            if name != "SHA256SUMS":
                refused(lambda: Translator(run.path))


def test_nothing_is_written_or_cut_through_a_link(run, tmp_path, tokenizer):
    victim, folder, config = tmp_path / "victim", tmp_path / "folder", tmp_path / "config"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "precious").write_text("precious")

    def plant(name: str, target: Path) -> None:
        (run.path / f".{name}.partial").symlink_to(victim)
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(target)

    begun = ROOT / "tests" / "release-1" / "config.yaml"
    plant("config.yaml", victim)
    plant("data_report.json", victim)
    assert "config.yaml" in refused(lambda: run.create(RunFolder(begun.parent).load_config(), (tokenizer, tokenizer), {}))
    config.write_bytes(begun.read_bytes())
    run.config_file.unlink()
    run.config_file.symlink_to(config)
    run.create(RunFolder(begun.parent).load_config(), (tokenizer, tokenizer), {})
    assert config.read_bytes() == begun.read_bytes()
    plant("outcome.json", victim)
    plant("model.safetensors", victim)
    run.save_outcome({})
    save_tensors(run.model_file, {"w": torch.ones(2)})
    (run.path / ".x.partial").symlink_to(victim)
    (run.checkpoints.path / ".00000010.partial").symlink_to(folder)
    run.clear_partial()
    assert victim.read_text() == (folder / "precious").read_text() == "precious"
    for recorded in ({}, {"events.out.tfevents.1": 0, "metrics.jsonl": 0}):
        run.tensorboard.mkdir(exist_ok=True)
        for link in (run.tensorboard / "events.out.tfevents.1", run.metrics_file):
            link.symlink_to(victim)
            assert "link" in refused(lambda recorded=recorded: Tracker(run.metrics_file, run.tensorboard, recorded=recorded))
            link.unlink()
    Tracker(run.metrics_file, run.tensorboard, recorded={"../../victim": 0, str(victim): 0}).close()
    assert victim.read_text() == "precious"


# A training goes on, or says why not


@pytest.fixture(scope="module")
def trained(script, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_pairs(folder / "pairs.tsv", PAIRS)
    result = script("train", *TINY, f"data.train={folder}/pairs.tsv", f"data.cache={folder}/cache", f"runs={folder}")
    assert result.returncode == 0, result.stderr.decode()
    return folder


def test_an_outcome_that_is_none_is_found_out_again(script, trained):
    run = RunFolder(trained / "run")
    before = run.load_outcome()
    for hostile in ([1, 2], {**before, "update": "2", "__class__": "x"}):
        run.save_outcome(hostile)
        result = script("train", *TINY, f"data.train={trained}/pairs.tsv", f"data.cache={trained}/cache", f"runs={trained}")
        assert result.returncode == 0, result.stderr.decode()
        assert run.load_outcome() == before


@pytest.mark.parametrize("change", [{"update": "2"}, {"validations": [{"update": 2}]}, {"recorded": {"metrics.jsonl": "0"}}])
def test_a_state_that_no_training_writes_ends_in_one_line(script, trained, tmp_path, change):
    shutil.copytree(trained / "run", tmp_path / "run")
    for state in RunFolder(tmp_path / "run").checkpoints.path.glob("*/state.json"):
        state.write_text(sealed(json.loads(state.read_text())["state"] | change))
    options = [f"data.train={trained}/pairs.tsv", f"data.cache={trained}/cache", f"runs={tmp_path}"]
    assert_user_error(script("train", *TINY, *options), "state.json")


def test_a_state_is_what_asdict_makes(trained):
    """The state that test_fuzz.py changes has the fields of a real one."""
    run = RunFolder(trained / "run")
    _, _, state = run.checkpoints.load(run.checkpoints.resumable()[0])
    assert state.keys() == dataclasses.asdict(TRAINING_STATE).keys()


# Data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def rows(folder: Path, **options: Any) -> list[tuple[str, str]]:
    """What training would get."""
    config = data_config(**{"path": str(folder), "train": "train", "cache": str(folder)} | options)
    found = read(config, "train")
    assert found is not None
    return cleaned(found, config, HeldOut(config), Counts())


def test_scripts_in_a_data_folder_are_not_run(data, mark):
    (data / "train.jsonl").write_text('{"en": "a", "de": "b"}\n')
    for name in ("data.py", "dataset.py", "setup.py", "conftest.py", "__init__.py", "sitecustomize.py"):
        (data / name).write_text(f"open({str(mark)!r}, 'w')\n")
        assert got_or_refused(lambda: rows(data)) in ([("a", "b")], None)
        (data / name).unlink()
    (data / "data.py").write_text(f"open({str(mark)!r}, 'w')\n")
    refused(lambda: rows(data, path=str(data / "data.py")))
    refused(lambda: rows(data, path=None, train=str(data / "data.py")))


@pytest.mark.parametrize("name", [
    "train.pkl", "train.pickle", "train.jsonl", "train.csv", "train.parquet", "train.arrow", "train.h5", "train.pt",
    "train.npy"])
def test_pickles_in_a_data_folder_are_not_unpickled(data, mark, name):
    for content in pickles(mark).values():
        (data / name).write_bytes(content)
        refused(lambda: rows(data))
        refused(lambda: rows(data, path=None, train=str(data / name)))


def test_pickles_in_a_tar_of_data_are_not_unpickled(data, mark):
    for content in pickles(mark).values():
        for name in ("0.pickle", "0.pkl", "0.pyd", "0.pt", "0.pth", "0.npy", "0.npz", "0.en.pickle"):
            with tarfile.open(data / "train.tar", "w") as file:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
            refused(lambda: rows(data))


def test_a_card_makes_no_objects(data, mark):
    (data / "train.jsonl").write_text('{"en": "a", "de": "b"}\n')
    for tag in TAGS[:7]:
        (data / "README.md").write_text(f"---\nlicense: {tag.format(mark=mark)}\n---\n")
        refused(lambda: rows(data))


def parquet(path: Path, values: pa.Array, feature: dict[str, Any]) -> Path:
    """A file whose metadata say what its column en is."""
    info = {"info": {"features": {"en": feature, "de": {"dtype": "string", "_type": "Value"}}}}
    table = pa.table({"en": values, "de": ["a"] * len(values)}).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("kind", ["Image", "Audio", "Video", "Pdf", "Nifti", "Mesh"])
def test_a_column_of_files_is_refused_before_any_is_opened(data, kind):
    secret = data / "secret"
    os.mkfifo(secret)  # whoever opened it would wait for ever
    files = pa.array([{"bytes": None, "path": str(secret)}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    file = parquet(data / "x.parquet", files, {"_type": kind})
    assert "instead of text" in refused(lambda: rows(data, path=None, train=str(file)))


@pytest.mark.parametrize("feature", [
    {"_type": "Nonsense"}, {"_type": "__class__"}, {"_type": "Value", "dtype": "__import__('os')"}, {"_type": "Value"}, 5, [],
    None,    {"_type": "Value", "dtype": "timestamp[s, tz='../../etc/passwd']"}, {"_type": "Json"}])
def test_hostile_metadata_of_parquet_are_refused_or_harmless(data, feature):
    file = parquet(data / "x.parquet", pa.array(["text"]), feature)
    assert got_or_refused(lambda: rows(data, path=None, train=str(file))) in ([("text", "a")], None)


@pytest.mark.parametrize("values", [
    pa.array(['{"a": '], pa.json_()), pa.array([2**62], pa.timestamp("us")), pa.array([b"\xff"], pa.binary()),
    pa.array([2**62], pa.date64())])
def test_values_that_cannot_be_decoded_are_refused_or_dropped(data, values):
    kind = {"_type": "Json"} if values.type == pa.json_() else {"_type": "Value", "dtype": str(values.type)}
    file = parquet(data / "x.parquet", values, kind)
    assert got_or_refused(lambda: rows(data, path=None, train=str(file))) in ([], None)


def test_a_pickled_arrow_type_is_not_unpickled(data, mark):
    for content in pickles(mark).values():
        extension = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": content}
        schema = pa.schema([pa.field("en", pa.string(), metadata=extension), pa.field("de", pa.string())])
        table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], schema=schema)
        pq.write_table(table, data / "train.parquet")
        assert rows(data, path=None, train=str(data / "train.parquet")) in ([("a", "b")], [])
        assert rows(data) in ([("a", "b")], [])


def test_a_saved_dataset_keeps_to_its_folder_and_runs_nothing(tmp_path, mark):
    saved = tmp_path / "saved"
    datasets.Dataset.from_list([{"en": "a", "de": "b"}]).save_to_disk(saved)
    datasets.Dataset.from_list([{"en": "secret", "de": "geheim"}]).save_to_disk(tmp_path / "other")
    state = json.loads((saved / "state.json").read_text())
    for file in ("../other/data-00000-of-00001.arrow", str(tmp_path / "other" / "data-00000-of-00001.arrow")):
        (saved / "state.json").write_text(json.dumps(state | {"_data_files": [{"filename": file}]}))
        assert "outside" in refused(lambda: rows(saved))
    for change in (
            {"_format_type": "custom", "_format_kwargs": {"transform": "os.system"}}, {"_format_type": "torch"},
            {"_split": f"open({str(mark)!r}, 'w')"}, {"_data_files": 5}, {"_fingerprint": None}, {"__class__": "x"},
            {"_format_columns": ["__class__"]}):
        (saved / "state.json").write_text(json.dumps(state | change))
        assert got_or_refused(lambda: rows(saved)) in ([("a", "b")], None)


def test_a_column_by_the_name_of_an_attribute_is_a_column(data):
    (data / "x.jsonl").write_text('{"__class__": "a", "__reduce__": "b"}\n')
    assert rows(data, path=None, train=str(data / "x.jsonl"), source="__class__", target="__reduce__") == [("a", "b")]


@pytest.mark.parametrize("content", [
    b"null\n", b'null\n{"en": "a", "de": "b"}\n', b"\xef\xbb\xbfnull\n", b'[null, {"en": "a", "de": "b"}]', b"\n\n null \n",
    b'{"en": "a", "de": "b"}\n' * 3 + b"null\n"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.jsonl.gz"])
def test_a_row_of_null_does_not_kill_the_process(data, name, content):
    """PyArrow 26 dies of them with a segmentation fault."""
    (data / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert "null" in refused(lambda: rows(data, path=None, train=str(data / name)))


BOMB = """
import resource, sys
from pathlib import Path
import datasets
datasets.config.HF_DATASETS_CACHE = Path(sys.argv[2])
from tests.support.corpora import data_config
from translator.runtime.errors import UserError
from translator.data.sources import read
try:
    read(data_config(train=sys.argv[1], cache=sys.argv[2]), "train")
except UserError as error:
    print(len(str(error).splitlines()), len(str(error)) < 2000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.parametrize("unit", [b" ", b"[", b'{"en": "'])
def test_a_small_gz_that_unpacks_to_much_ends_in_one_line(data, unit):
    """50 MB of a single line, 50 kB packed, in at most a gigabyte beside the libraries' own half."""
    (data / "x.jsonl.gz").write_bytes(gzip.compress(unit * (50_000_000 // len(unit))))
    assert (data / "x.jsonl.gz").stat().st_size < 200_000
    command = [sys.executable, "-c", BOMB, str(data / "x.jsonl.gz"), str(data)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"1 True\n(\d+)\n", result.stdout), result.stdout
    assert int(result.stdout.split()[-1]) < 1536
