"""The measuring command on real, if tiny, data, and the comparison of two checkouts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import pytest
import speed
import training

from tests.support.commands import assert_user_error
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import updater_of
from translator.compression.quantization import write_quantized
from translator.data.batching import collate
from translator.runs.run_folder import RunFolder

TINY = [
    "data=files", "tokenizer.vocab_size=320", "data.holdout=20", "model=tiny", "model.d_model=32", "train.batch_tokens=256",
    "device=cpu"]
SETTINGS = {f"beam_{beam}_batch_{size}" for beam in (1, 5) for size in ("file", 1)}
ON_A_CPU = ("data", "forward", "backward", "optimizer")


def test_checkouts_are_compared_by_medians_of_rounds(tmp_path, monkeypatch):
    rates = {speed.ROOT: iter([3.0, 30.0, 4.0]), tmp_path: iter([2.0, 1.0, 2.0])}
    monkeypatch.setattr(speed, "measured_by", lambda checkout, arguments: {
        "training": {"rate": next(rates[checkout]), **({"only": 1} if checkout == tmp_path else {})}})
    options = argparse.Namespace(
        overrides=["model=tiny"], updates=2, repeats=1, run=None, decode_in=None, sentences=3,
        output=tmp_path / "report.json", against=tmp_path, rounds=3)
    assert speed.compare(options)["medians"] == {"training.rate": {"against": 2.0, "this": 4.0}}


def test_a_folder_that_is_no_checkout_is_refused(script, tmp_path):
    assert_user_error(script("bench/speed", f"--against={tmp_path}", f"--output={tmp_path}/x.json"), "--against", str(tmp_path))


def test_operations_are_counted_by_target_token():
    updater = updater_of(d_ff=32)
    trainer: Any = SimpleNamespace(model=updater.model, updater=updater)
    batch = collate([[5, 6, 7, 8, 3]] * 3, [[8, 9, 10, 11, 3]] * 3)
    counted = training.flops_per_token(trainer, [batch])
    assert training.flops_per_token(trainer, [batch] * 2) == counted
    weights = sum(weight.numel() for name, weight in updater.model.named_parameters() if weight.dim() == 2)
    assert 6 * weights < counted < 8 * weights  # two a weight forward, four backward; attention, and padding in the loss


def test_models_are_compared_in_one_table(trained_folder, tmp_path, monkeypatch, capsys):
    """In this process: the processes of their own are the torture test's."""
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(models, "in_fresh_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(models, "tune_cpu", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tmp_path / "run"
    shutil.copytree(trained_folder, run)
    config = RunFolder(run).load_config()
    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    (tmp_path / "cache").mkdir()
    data = dataclasses.replace(config.data, path=None, train=str(pairs), holdout=20, cache=str(tmp_path / "cache"))
    RunFolder(run).write_config(dataclasses.replace(config, data=data))
    write_quantized(RunFolder(run), tmp_path / "int8")
    arguments = ["models", f"--runs={run},{tmp_path}/int8", "--sentences=6", "--rounds=1", "--ctranslate2"]
    monkeypatch.setattr(sys, "argv", arguments)
    models.main()
    _, _, *table = capsys.readouterr().out.splitlines()
    heading, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert tuple(heading) == models.HEADING
    assert [row[0] for row in rows] == [
        str(run), f"{tmp_path}/int8", f"{run}, CTranslate2 float32", f"{run}, CTranslate2 int8"]
    by_name = [dict(zip(heading, row, strict=True)) for row in rows]
    assert {row["parameters, millions"] for row in by_name} == {by_name[0]["parameters, millions"]}
    assert all(float(row["sentences/s, beam 5"].replace(",", "")) > 0 for row in by_name)
    assert float(by_name[0]["BLEU, greedy"]) == pytest.approx(float(by_name[2]["BLEU, greedy"]), abs=0.01)


@pytest.mark.torture
def test_reports_from_the_command_line(script, tmp_path: Path):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = [*TINY, f"data.train={data}", f"data.cache={tmp_path}/cache"]
    trained = script("train", *options, f"runs={tmp_path}", "name=two", "train.max_updates=2")
    assert trained.returncode == 0, trained.stderr.decode()
    report = tmp_path / "report.json"
    start = time.perf_counter()
    result = script(
        "bench/speed", "--updates=2", "--repeats=3", *options, f"--output={report}", f"--trace={tmp_path}/trace.json",
        "train.log_every=50")  # overrides may stand before and after options
    passed = time.perf_counter() - start
    assert result.returncode == 0, result.stderr.decode()
    assert b"Warning" not in result.stderr
    written = json.loads(report.read_text())
    assert json.loads(result.stdout) == written
    figures = written["training"]
    assert min(figures[f"share_{name}"] for name in ON_A_CPU) > 0
    assert figures["share_data"] < figures["share_forward"] + figures["share_backward"]
    assert 64 < figures["tokens_per_update"] <= 256  # of a batch's room most is taken, and no more than there is
    assert 2 * 3 / figures["updates_per_second"] < passed
    assert figures["model_gflops"] > 0
    assert figures["peak_memory_gib"] > 0.05
    assert 0 <= figures["padding"] < 1
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert set(ON_A_CPU) <= names

    result = script(
        "bench/speed", f"--run={tmp_path}/two", "device=cpu", "--sentences=2", "--repeats=1", f"--output={tmp_path}/d.json")
    assert result.returncode == 0, result.stderr.decode()
    decoded = json.loads((tmp_path / "d.json").read_text())["decoding"]
    assert set(decoded) == {"fp32", "bf16", "int8"}
    for figures in decoded.values():
        assert set(figures) == SETTINGS
        assert all(row["sentences_per_second"] > 0 for row in figures.values())

    assert_user_error(script("bench/speed", "modle=tiny"), "modle")
    assert_user_error(script("bench/speed", *options, "model.d_model=1048576"), "the model does not fit")
    assert_user_error(script("bench/speed", f"--run={tmp_path}/none"), f"{tmp_path}/none")
    assert_user_error(script("bench/speed", "--sentences=2"), "--sentences")
    assert_user_error(script("bench/speed", f"--run={tmp_path}/two", "--updates=5"), "--updates")
    assert_user_error(script("bench/speed", f"--run={tmp_path}/two", f"--trace={tmp_path}/t.json"), "--trace")
    for ignored in ("model=tiny", "search.beam_size=3", "search.sampling=true"):
        assert_user_error(script("bench/speed", f"--run={tmp_path}/two", "device=cpu", ignored), ignored.split("=")[0])
    refused = script("bench/speed", "--repeats=0")
    assert refused.returncode == 2
    assert b"argument --repeats: must be a whole number above 0, not 0" in refused.stderr
