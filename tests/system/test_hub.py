"""Datasets on the hub, through the unmodified client, from a loopback server: what is found, what is not, what breaks off."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpora import PAIRS
from tests.support.hub import Hub, Repository, running_hub
from tests.support.paths import ROOT

# Loads what each line of stdin asks for, in a process of its own: the client reads its settings once, when it is imported.
WORKER = """
import json, sys, time
from itertools import islice
from tests.support.configurations import run_config, tokenizer_config
from translator.config.building import build
from translator.config.data import DataConfig
from translator.data.preparation import load_split, prepare
from translator.runtime.errors import UserError
from translator.data.sources import windows
time.sleep = lambda seconds: None  # the client tries again at once
for line in sys.stdin:
    options = json.loads(line)
    config = run_config(*options["overrides"]).data
    try:
        if options["windows"]:
            splits = list(islice(windows(config), options["windows"]))
        elif options["prepare"]:
            corpus = prepare(config, tokenizer_config(), max_tokens=100)
            splits = corpus.train, corpus.validation, corpus.test
        else:
            splits = [load_split(config, split) for split in ("train", "validation", "test")]
        answer = {"pairs": [list(zip(split["source"], split["target"])) for split in splits]}
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""
CARD = """---
configs:
- config_name: de-en
  data_files:
  - {split: train, path: de-en/train-*}
  - {split: validation, path: de-en/validation-*}
  - {split: test, path: de-en/test-*}
- config_name: fr-en
  data_files: [{split: train, path: fr-en/train-*}]
---
"""
TRAIN, VALIDATION, TEST = PAIRS[:80], PAIRS[80:84], PAIRS[84:88]
TRAIN = [(f"{i} {s}", f"{i} {t}") for i, (s, t) in enumerate(TRAIN)]  # no sentence is in two splits
VALIDATION = [(f"v {s}", f"v {t}") for s, t in VALIDATION]
SPLITS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}

Load = Callable[..., dict[str, Any]]


def parquet(pairs: list[tuple[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"translation": [{"de": t, "en": s} for s, t in pairs]}), file)
    return file.getvalue()


def json_lines(pairs: list[tuple[str, str]]) -> bytes:
    return "".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in pairs).encode()


def with_configs() -> Repository:
    files = {f"{pair}/{split}-00000-of-00001.parquet": parquet(pairs) for pair in ("de-en", "fr-en")
             for split, pairs in SPLITS.items()}
    return Repository({"main": {"README.md": CARD.encode(), **files}})


def flat(**cut: int) -> Repository:
    names = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
    files = {names[split]: json_lines(pairs) for split, pairs in SPLITS.items()}
    return Repository({"main": {"README.md": b"# Flat\n"} | files}, cut={names[split]: count for split, count in cut.items()})


def tables() -> Repository:
    files = {
        f"{split}.tsv": ("id\ten\tde\n" + "".join(f'{i}\t{s}\t"{t}\n' for i, (s, t) in enumerate(pairs))).encode()
        for split, pairs in SPLITS.items()}
    return Repository({"main": {"README.md": b"# Tables\n"} | files})


def converted() -> Repository:
    """A repository whose script no longer loads, and the hub's own conversion of it."""
    files = {f"iwslt2017-{pair}/{split}/0000.parquet": parquet(pairs) for pair in ("ar-en", "en-de")
             for split, pairs in SPLITS.items()}
    return Repository({"main": {"README.md": b"# Script\n", "iwslt2017.py": b"raise\n"}, "refs/convert/parquet": files})


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        server.repositories |= {
            "wmt/wmt14": with_configs(), "Helsinki-NLP/opus-100": with_configs(), "Helsinki-NLP/opus_books": with_configs(),
            "bentrevett/multi30k": flat(), "IWSLT/iwslt2017": converted(),
            "someone/resumed": flat(train=1), "someone/changing": flat(), "someone/broken": flat(train=10_000),
            "someone/tables": tables(),
            "someone/private": Repository({}, (401, {
                "X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})),
            "someone/gated": Repository({}, (403, {
                "X-Error-Code": "GatedRepo", "X-Error-Message": "Access to dataset someone/gated is restricted"})),
            "someone/script": Repository({"main": {"README.md": b"# Script\n", "script.py": b"raise\n"}}),
            "someone/bare": Repository({"main": {"README.md": b"# Nothing\n"}}),
            "someone/down": Repository({}, (500, {"X-Error-Message": "Internal error"}))}
        yield server


def environment(hub: Hub, home: Path) -> dict[str, str]:
    """Of a process whose hub is ours. As its proxy we also get what it asks of other hosts, and none is reached."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name[:2] != "HF"}
    return kept | {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "http_proxy": hub.url, "https_proxy": hub.url, "no_proxy": "127.0.0.1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def load(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """load(*overrides) -> {"pairs": [train, validation, test]} or {"error": a UserError's words}."""
    home = tmp_path_factory.mktemp("hub")
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(home / "stderr").open("w"),
        text=True, cwd=ROOT, env=environment(hub, home))
    assert worker.stdin is not None
    assert worker.stdout is not None

    def ask(*overrides: str, prepare: bool = False, windows: int = 0) -> dict[str, Any]:
        overrides = (f"data.cache={home}/cache", *overrides)
        print(json.dumps({"overrides": overrides, "prepare": prepare, "windows": windows}), file=worker.stdin, flush=True)
        line = worker.stdout.readline()
        assert line, (home / "stderr").read_text()
        return json.loads(line)

    yield ask
    worker.kill()
    worker.wait()
    worker.stdin.close()
    worker.stdout.close()


@pytest.mark.parametrize("preset", ["multi30k", "opus-100", "wmt14", "iwslt2017"])
def test_presets_load_repositories_of_their_layout(load, preset):
    assert load(f"data={preset}") == {"pairs": [list(map(list, pairs)) for pairs in SPLITS.values()]}


def test_a_preset_without_held_out_splits_cuts_them(load):
    train, validation, test = load("data=opus_books", "data.holdout=6", prepare=True)["pairs"]
    assert len(train) + len(validation) + len(test) == len(TRAIN)
    assert (len(validation), len(test)) == (6, 6)
    assert sorted(map(tuple, train + validation + test)) == sorted(TRAIN)


def test_slices_and_other_directions(load):
    pairs = load("data=multi30k", 'data.train="train[:50%]"', "data.source=de", "data.target=en")["pairs"]
    assert pairs[0] == [[t, s] for s, t in TRAIN[:40]]


def test_tables_are_read_as_they_stand(load):
    """As when they are named as files: a quotation mark is a character."""
    expected = [[[source, f'"{target}'] for source, target in pairs] for pairs in SPLITS.values()]
    assert load("data=multi30k", "data.path=someone/tables")["pairs"] == expected
    found = load("data=multi30k", "data.path=someone/tables", "data.window=30", "train.max_epochs=null", windows=1)
    assert found["pairs"] == [expected[0][:30]]


def test_a_broken_connection_is_taken_up_where_it_broke(load, hub):
    assert load("data=multi30k", "data.path=someone/resumed")["pairs"][0] == list(map(list, TRAIN))
    assert hub.repositories["someone/resumed"].cut["train.jsonl"] == 0


def test_a_second_start_downloads_nothing(load, hub):
    load("data=multi30k", prepare=True)
    before = len(hub.requests)
    load("data=multi30k", prepare=True)
    assert hub.requests[before:] == ["GET /api/datasets/bentrevett/multi30k"]


def test_a_new_commit_is_another_dataset(load, hub):
    first = load("data=multi30k", "data.path=someone/changing")["pairs"][0]
    hub.repositories["someone/changing"] = changed = flat()
    changed.revisions["main"]["train.jsonl"] = json_lines(TRAIN[1:])
    assert load("data=multi30k", "data.path=someone/changing")["pairs"][0] == first[1:]


ERRORS = {
    "not found": ("data=multi30k data.path=someone/nothing", ["someone/nothing", "doesn't exist"]),
    "private": ("data=multi30k data.path=someone/private", ["someone/private", "cannot be accessed"]),
    "gated": ("data=multi30k data.path=someone/gated", ["someone/gated", "gated"]),
    "out of order": ("data=multi30k data.path=someone/down", ["someone/down", "check your connection"]),
    "no data": ("data=multi30k data.path=someone/bare", ["someone/bare"]),
    "connection cut for good": ("data=multi30k data.path=someone/broken", ["someone/broken"]),
    "a script": ("data=multi30k data.path=someone/script", ["someone/script", "scripts are no longer supported"]),
    "no such column": ("data=multi30k data.target=fr", ["fr", "en, de", "data.target"]),
    "no such language": ("data=wmt14 data.target=fr", ["fr", "de, en", "data.target"]),
    "no such split": ("data=multi30k data.test=dev", ["data.test=dev", "train", "validation", "test"]),
    "no such config": ("data=wmt14 data.config=xx-yy", ["xx-yy", "de-en", "fr-en"]),
    "config missing": ("data=wmt14 data.config=null", ["de-en", "fr-en"]),
    "no such revision": ("data=wmt14 data.revision=v9", ["v9"]),
    "no such folder": ("data=iwslt2017 data.folder=iwslt2017-xx-yy", ["iwslt2017-xx-yy"]),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_goes_wrong_is_one_line(load, case):
    overrides, words = ERRORS[case]
    error = load(*overrides.split())["error"]
    assert "\n" not in error
    assert len(error) < 800
    for word in words:
        assert word in error


def test_no_network(tmp_path):
    """The hub's port is closed."""
    with running_hub() as hub:
        closed = environment(hub, tmp_path)
    overrides = ["data=multi30k", f"data.cache={tmp_path}/cache"]
    asked = json.dumps({"overrides": overrides, "prepare": False, "windows": 0})
    result = subprocess.run(
        [sys.executable, "-c", WORKER], input=asked, capture_output=True, text=True, cwd=ROOT, env=closed, timeout=120)
    error = json.loads(result.stdout)["error"]
    assert "bentrevett/multi30k" in error
    assert "\n" not in error


@pytest.mark.parametrize("preset", ["wmt14", "multi30k"])
def test_a_dataset_streams_from_the_hub(load, hub, preset):
    """Parquet and JSON Lines, in windows, the last with the rest; then comes the first again."""
    found = load(
        f"data={preset}", "data.source=en", "data.target=de", "data.window=30", "train.max_epochs=null", windows=4)
    pairs = [list(map(list, part)) for part in (TRAIN[:30], TRAIN[30:])] * 2
    assert found == {"pairs": pairs}
