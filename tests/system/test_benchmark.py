"""The benchmark's arithmetic against PyTorch's own count, and its command line on real, if tiny, data."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.support.commands import assert_user_error
from tests.support.configurations import model_config, search_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import random_model
from translator.bench.benchmark import DECODING, PHASES, compare, model_flops
from translator.bench.side_by_side import IMPATIENT, Exported, Ours, one_by_one, twin_of
from translator.data.batching import Batch, collate
from translator.inference.workers import Job

TINY = [
    "data=files", "tokenizer.vocab_size=320", "data.holdout=20", "model=tiny", "model.d_model=32", "train.batch_tokens=256",
    "device=cpu"]
ON_A_CPU = [phase for phase in PHASES if phase != "replay"]


def without_padding() -> Batch:
    return collate([[5, 6, 7, 3]] * 3, [[8, 9, 3]] * 3)


@pytest.mark.parametrize("changes", [{}, {"activation": "swiglu", "encoder_layers": 3}, {"norm": "post", "tied": "none"}])
def test_operations_are_those_that_pytorch_counts(changes):
    model, batch = random_model(model_config(**changes)), without_padding()
    for passes, encodings in ((1, 1), (2, 2), (2, 1)):
        with FlopCounterMode(display=False) as counter:  # with gradients: the kernel for few sentences is not counted
            model(batch.source.repeat(encodings, 1), batch.target_in.repeat(passes, 1))
        assert 3 * counter.get_total_flops() == model_flops(model, batch, passes=passes, encodings=encodings)


def test_padding_is_no_work_of_the_models():
    padded = collate([[5, 6, 7, 3]] * 3 + [[5, 3]], [[8, 9, 3]] * 3 + [[3]])
    model = random_model()
    assert model_flops(model, padded) == model_flops(model, without_padding()) + model_flops(model, collate([[5, 3]], [[3]]))


def test_pieces_that_the_loss_leaves_out_are_no_work():
    model, batch = random_model(vocab=40), without_padding()  # of targets there are three
    of_a_piece = 6 * model.config.d_model * batch.num_tokens
    for sampled, pieces in ((2, 6), (10, 10), (100, 40)):
        assert model_flops(model, batch) - model_flops(model, batch, sampled) == (40 - pieces) * of_a_piece


def test_comparing_gives_ratios_of_what_both_have():
    lines = compare({"a": {"x": 2.0, "only": 1.0}, "y": 0}, {"a": {"x": 3.0, "name": "n"}, "y": 1})
    assert [line.split() for line in lines] == [["a.x", "2.00", "3.00", "1.50", "x"]]


class Sleeper:
    """A system that takes so many seconds a sentence, where it is asked for them one by one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_one_thread(self, beam_size: int) -> Callable[[Sequence[str]], list[str]]:
        return lambda texts: time.sleep(self.seconds * len(texts)) or []


def test_texts_are_compared_to_ours_of_the_same_search():
    job = Job(("run",), "cpu", "fp32", search_config(beam_size=5), details=False)
    patient, impatient = Ours(job), Ours(job, IMPATIENT)
    others = [Exported("ctranslate2", Path(), "cpu", {}, searching) for searching in ({}, IMPATIENT)]
    systems: dict[str, Any] = {"a": others[1], "b": patient, "c": others[0], "d": dataclasses.replace(patient), "e": impatient}
    assert [twin_of(system, systems) for system in systems.values()] == ["e", "b", "b", "b", "e"]


@pytest.mark.torture
@pytest.mark.parametrize("sentences", [4, 15])
def test_of_single_sentences_the_time_of_each_is_told(sentences):
    systems: Any = {"quick": Sleeper(0.03), "slow": Sleeper(0.06)}
    seconds = one_by_one(systems, 1, ["a"] * sentences, rounds=2)
    assert [len(turns) for turns in seconds.values()] == [2 * -(-sentences // 10)] * 2
    assert seconds["quick"] == pytest.approx([0.03] * len(seconds["quick"]), rel=0.3)
    assert seconds["slow"] == pytest.approx([0.06] * len(seconds["slow"]), rel=0.3)


@pytest.mark.torture
def test_reports_from_the_command_line(script, tmp_path: Path):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = [*TINY, f"data.train={data}", f"data.cache={tmp_path}/cache"]
    trained = script("train", *options, f"runs={tmp_path}", "name=two", "train.max_updates=2")
    assert trained.returncode == 0, trained.stderr.decode()
    report = tmp_path / "report.json"
    start = time.perf_counter()
    result = script(
        "benchmark", "--updates=2", "--repeats=3", *options, f"--output={report}", f"--trace={tmp_path}/trace.json",
        "train.log_every=50")  # overrides may stand before and after options
    passed = time.perf_counter() - start
    assert result.returncode == 0, result.stderr.decode()
    assert b"Warning" not in result.stderr
    written = json.loads(report.read_text())
    assert json.loads(result.stdout) == written
    training = written["training"]
    assert min(training[f"share_{name}"] for name in ON_A_CPU) > 0
    assert training["share_data"] < training["share_forward"] + training["share_backward"]
    assert 64 < training["tokens_per_update"] <= 256  # of a batch's room most is taken, and no more than there is
    assert 2 * 3 * training["seconds_per_update"] < passed
    assert 0 < training["utilisation"] < 1
    assert training["peak_memory_gib"] > 0.05
    assert 0 <= training["padding"] < 1
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert set(ON_A_CPU) <= names

    result = script(
        "benchmark", f"--run={tmp_path}/two", "device=cpu", "--sentences=2", "--repeats=1", f"--output={tmp_path}/d.json")
    assert result.returncode == 0, result.stderr.decode()
    decoding = json.loads((tmp_path / "d.json").read_text())["decoding"]
    assert set(decoding) == {"fp32", "bf16", "int8"}
    for precision, figures in decoding.items():
        assert set(figures) == {f"beam_{beam}_batch_{batch or 'file'}" for beam, batch in DECODING}
        assert all(row["sentences_per_second"] > 0 for row in figures.values())
        told = [line for line in result.stderr.decode().splitlines() if line.startswith(precision) and "tokens/s" in line]
        assert len(told) == len(DECODING)

    beside = script(
        "benchmark", f"--run={tmp_path}/two", "device=cpu", "--beside=ctranslate2", "--beside=huggingface", "--sentences=4",
        "--repeats=1", "--decode-in=fp32", "--workers=2", f"--output={tmp_path}/b.json", timeout=900)
    assert beside.returncode == 0, beside.stderr.decode()
    settings = json.loads((tmp_path / "b.json").read_text())["side_by_side"]
    assert set(settings) == {f"beam_{beam}_{how}" for beam in (1, 5) for how in ("file", "singly", "one_by_one")}
    for systems in settings.values():
        assert set(systems) == {
            "ctranslate2 float32", "ctranslate2 float32, patience=1", "ctranslate2 int8", "huggingface float32", "this fp32",
            "this fp32, patience=1"}
        assert all(row["sentences_per_second"] > 0 for row in systems.values())
    assert settings["beam_5_file"]["this fp32"]["alike"] == 4

    compared = script("benchmark", "--compare", str(report), str(report))
    assert compared.returncode == 0
    assert {line.split()[-2] for line in compared.stdout.decode().splitlines()} == {"1.00"}
    assert_user_error(script("benchmark", "--compare", str(report), str(data)), str(data))
    for ignored in ("--repeats=2", "--workers=2", "model=tiny"):
        assert_user_error(script("benchmark", "--compare", str(report), str(report), ignored), ignored.split("=")[0])
    assert_user_error(script("benchmark", "modle=tiny"), "modle")
    assert_user_error(script("benchmark", *options, "model.d_model=1048576"), "the model does not fit")
    assert_user_error(script("benchmark", f"--run={tmp_path}/none"), f"{tmp_path}/none")
    assert_user_error(script("benchmark", "--beside=ctranslate2", "device=cpu"), "--beside")
    assert_user_error(script("benchmark", "--workers=2"), "--workers")
    assert_user_error(script("benchmark", f"--run={tmp_path}/two", "--updates=5"), "--updates")
    assert_user_error(script("benchmark", f"--run={tmp_path}/two", f"--trace={tmp_path}/t.json"), "--trace")
    for ignored in ("model=tiny", "search.beam_size=3", "search.sampling=true"):
        assert_user_error(script("benchmark", f"--run={tmp_path}/two", "device=cpu", ignored), ignored.split("=")[0])
    for ignored in ("search.shortlist=20", "search.coverage_penalty=0.2"):
        assert_user_error(
            script("benchmark", f"--run={tmp_path}/two", "device=cpu", "--beside=ctranslate2", ignored), ignored.split("=")[0])
    refused = script("benchmark", "--repeats=0")
    assert refused.returncode == 2
    assert b"argument --repeats: must be a whole number above 0, not 0" in refused.stderr
