"""A user's mistake ends in one line that names it and exit code 2, whatever it is: train, evaluate, translate."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.commands import assert_user_error
from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT

SHORT = [*TINY, "train.max_epochs=1", "train.max_minutes=null", "train.batch_tokens=2000"]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are wrong in one way each, and of one that is right."""
    folder = tmp_path_factory.mktemp("bad")
    write_pairs(folder / "good.tsv", PAIRS)
    (folder / "folder.tsv").mkdir()
    write_pairs(folder / "few.tsv", PAIRS[:3])
    write_pairs(folder / "longer.tsv", [("A tree.", "Ein Baum."), (" ".join(["trees"] * 30), " ".join(["Bäume"] * 30))])
    write_pairs(folder / "long.tsv", [("a" * 100_000, "b" * 100_000)] * 3 + [("c" * 100_000, "d" * 100_000)] * 30)
    write_pairs(folder / "blank.tsv", [("", "x"), (" ", "y")] * 20)
    write_pairs(folder / "header.tsv", [])
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "broken.jsonl").write_text('{"en": "a", "de": "b"}\n{"en": "c", "de":\n')
    (folder / "junk.tsv").write_bytes(bytes(range(256)) * 40)
    (folder / "junk.parquet").write_bytes(b"PAR1" + bytes(range(256)))
    (folder / "pairs.xlsx").write_bytes(b"PK")
    (folder / "latin.en").write_bytes(b"caf\xe9\n" * 40)
    (folder / "utf8.de").write_text("Kaffee\n" * 40)
    (folder / "short.de").write_text("Kaffee\n" * 39)
    (folder / "utf8.en").write_text("coffee\n" * 40)
    (folder / "cut.tsv.gz").write_bytes(gzip.compress((folder / "good.tsv").read_bytes())[:-60])
    (folder / "packed.tsv").write_bytes(gzip.compress((folder / "good.tsv").read_bytes()))
    (folder / "translation.jsonl").write_text('{"translation": {"en": "a", "fr": "b"}}\n' * 40)
    (folder / "notarun").mkdir()
    (folder / "notarun" / "config.yaml").write_text("lightning: true\n")
    return folder


TRAIN = {
    "missing file": ("data.train={bad}/nothing.tsv", "nothing.tsv"),
    "malformed json": ("data.train={bad}/broken.jsonl", "broken.jsonl"),
    "wrong column": ("data.train={bad}/good.tsv data.target=fr", "fr"),
    "the columns there are": ("data.train={bad}/good.tsv data.target=fr", "en, de"),
    "wrong language": ("data.train={bad}/translation.jsonl", "en, fr"),
    "empty file": ("data.train={bad}/empty.jsonl", "empty"),
    "no rows": ("data.train={bad}/header.tsv", "header.tsv"),
    "binary junk": ("data.train={bad}/junk.tsv", "junk.tsv"),
    "no parquet": ("data.train={bad}/junk.parquet", "junk.parquet"),
    "unknown format": ("data.train={bad}/pairs.xlsx", ".parquet"),
    "invalid UTF-8": ("data.train=[{bad}/latin.en,{bad}/utf8.de]", "latin.en:1"),
    "unequal files": ("data.train=[{bad}/utf8.en,{bad}/short.de]", "39"),
    "a third file": ("data.train={bad}/good.tsv data.test=[{bad}/utf8.en,{bad}/utf8.de,{bad}/utf8.en]", "at most 2 items"),
    "a search that refuses all": ("data.train={bad}/good.tsv search.language=de", "search.language"),
    "terms that are not there": ("data.train={bad}/good.tsv search.terminology=nowhere.tsv", "nowhere.tsv"),
    "gzip by another name": ("data.train={bad}/packed.tsv", "is packed by gzip. Rename it to end in .gz"),
    "truncated gzip": ("data.train={bad}/cut.tsv.gz", "cut.tsv.gz"),
    "lines of 100,000 characters": ("data.train={bad}/long.tsv", "too"),
    "no text": ("data.train={bad}/blank.tsv", "data.train"),
    "too few pairs": ("data.train={bad}/few.tsv", "too few"),
    "no training data": ("train.max_epochs=1", "data.train"),
    "vocabulary too small": ("data.train={bad}/good.tsv tokenizer.vocab_size=20", "tokenizer.vocab_size=20"),
    "no such folder": ("data=tatoeba data.path=./nowhere", "./nowhere"),
    "a folder for a file": ("data.train={bad}/folder.tsv", "is a folder"),
    "misspelt option": ("data.train={bad}/good.tsv train.max_epoch=3", "did you mean train.max_epochs"),
    "misspelt group": ("data.train={bad}/good.tsv modle=tiny", "did you mean model"),
    "new option": ("data.train={bad}/good.tsv +train.max_epoch=3", "did you mean train.max_epochs"),
    "wrong type": ("data.train={bad}/good.tsv train.batch_tokens=lots", "train.batch_tokens"),
    "no such preset": ("data.train={bad}/good.tsv model=huge", "tiny"),
    "no equals sign": ("data.train={bad}/good.tsv model.d_model", "model.d_model"),
    "a model that no memory holds": ("data.train={bad}/good.tsv model.d_model=1048576", "the model does not fit"),
    "batches too small": ("data.train={bad}/good.tsv train.batch_tokens=2", "raise train.batch_tokens"),
    "an empty folder of runs": ("data.train={bad}/good.tsv runs=", "runs: is empty"),
    "folder of something else": ("data.train={bad}/good.tsv runs={bad} name=notarun", "notarun"),
    "no folder can be made": ("data.train={bad}/good.tsv runs=/dev/null", "/dev/null"),
}


@pytest.mark.parametrize("case", TRAIN)
def test_train(script, bad, tmp_path, case):
    options, words = TRAIN[case]
    base = ["data=files", f"runs={tmp_path}", "name=run", f"data.cache={tmp_path}/cache", *SHORT]
    result = script("train", *base, *options.format(bad=bad).split())
    assert_user_error(result, words)
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["train", "translate"])
def test_a_gpu_where_there_is_none(script, run_folder, bad, tmp_path, name):
    options = {"train": ["data=files", f"data.train={bad}/good.tsv", f"runs={tmp_path}"], "translate": [f"run={run_folder}"]}
    assert_user_error(script(name, *options[name], "device=cuda", stdin=b"x\n"), "device=cuda")


def test_a_run_goes_on_with_its_own_options_or_not_at_all(script, bad, tmp_path):
    base = ["data=files", f"data.train={bad}/good.tsv", f"runs={tmp_path}", "name=run", f"data.cache={tmp_path}/cache", *SHORT]
    assert script("train", *base).returncode == 0
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert_user_error(script("train", *base, "model.d_ff=48"), "model.d_ff=48", "32", "name=")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_run_that_lost_a_file_says_so_or_makes_it_anew(script, bad, tmp_path):
    base = ["data=files", f"data.train={bad}/good.tsv", f"runs={tmp_path}", "name=run", f"data.cache={tmp_path}/cache", *SHORT]
    assert script("train", *base).returncode == 0
    weights, config = tmp_path / "run" / "model.safetensors", tmp_path / "run" / "config.yaml"
    before, options = weights.read_bytes(), config.read_text()
    weights.unlink()
    assert_user_error(script("translate", f"run={tmp_path}/run", stdin=b"x\n"), "model.safetensors")
    again = script("train", *base)
    assert again.returncode == 0, again.stderr
    assert weights.read_bytes() == before
    config.unlink()
    assert_user_error(script("train", *base, "model.d_ff=48"), "config.yaml", "name=")
    assert not config.exists()
    config.write_text(options)
    assert script("train", *base).returncode == 0


def test_a_start_that_failed_binds_to_nothing(script, bad, tmp_path):
    """What the message advises can be done under the same name: nothing has been learned yet."""
    base = [
        "data=files", f"data.train={bad}/good.tsv", f"runs={tmp_path}", "name=run", f"data.cache={tmp_path}/cache", *SHORT,
        f"data.validation={bad}/longer.tsv", "model.positions=learned"]
    assert_user_error(script("train", *base, "model.max_positions=40"), "model.max_positions")
    assert (tmp_path / "run" / "tokenizer.source.model").exists()
    others = ["model.max_positions=400", "model.tied=none", "tokenizer.joint=false", "tokenizer.vocab_size=300"]
    again = script("train", *base, *others)
    assert again.returncode == 0, again.stderr
    assert script("translate", f"run={tmp_path}/run", stdin=b"She sees two trees.\n").returncode == 0


EVALUATE = {
    "no such run": ("run=/nowhere", "/nowhere"),
    "no run": ("runs={bad}/notarun", "/scripts/train.py"),
    "not a run": ("run={bad}/notarun", "config.yaml"),
    "an empty folder of runs": ("runs=", "runs: is empty"),
    "no such split": ("run={run} split=dev", "split"),
    "one file of two": ("run={run} source_file={bad}/utf8.en", "reference_file"),
    "unequal files": ("run={run} source_file={bad}/utf8.en reference_file={bad}/short.de", "39"),
    "no such rival": ("run={run} against=/nowhere source_file={bad}/utf8.en reference_file={bad}/utf8.de", "/nowhere"),
}


@pytest.mark.parametrize("case", EVALUATE)
def test_evaluate(script, run_folder, bad, case):
    options, words = EVALUATE[case]
    assert_user_error(script("evaluate", *options.format(bad=bad, run=run_folder).split()), words)


TRANSLATE = {
    "not a run": ("run={bad}/notarun", "config.yaml"),
    "no input": ("run={run} input={bad}/nothing", "nothing"),
    "a folder for input": ("run={run} input={bad}", "is a folder"),
    "input by another name": ("run={run} input={bad}/packed.tsv", "is packed by gzip. Rename it to end in .gz"),
    "no option of a number": ("run={run} search.beam_size.x=2", "search.beam_size"),
    "no option of a list": ("run={run} search.banned.x=2", "configuration"),
    "an empty phrase": ("run={run} search.banned=['']", "search.banned"),
    "no beam": ("run={run} search.beam_size=0", "search.beam_size"),
    "more than the beam": ("run={run} search.n_best=9", "search.n_best"),
    "output is a folder": ("run={run} output={bad}", "output"),
    "output is the input": ("run={run} input={bad}/utf8.en output={bad}/utf8.en", "output"),
    "output is the run's own": ("run={run} output={run}/model.safetensors", "model.safetensors belongs to the run in"),
    "full disk": ("run={run} output=/dev/full", "No space left"),
}


@pytest.mark.parametrize("case", TRANSLATE)
def test_translate(script, run_folder, bad, case):
    options, words = TRANSLATE[case]
    result = script("translate", *options.format(bad=bad, run=run_folder).split(), stdin=b"She sees two trees.\n")
    assert_user_error(result, words)


OF_THE_RUN = {
    "report": "run={run} output={run}/checkpoints", "plot_attention": "run={run} text=x output={run}/tensorboard/x",
    "export": "format=ctranslate2 run={run} output={run}/evaluation-test",
    "bench/speed": "--run={run} --output={run}/outcome.json"}


@pytest.mark.parametrize("name", OF_THE_RUN)
def test_no_command_writes_over_the_run_s_own_files(script, run_folder, name):
    assert_user_error(script(name, *OF_THE_RUN[name].format(run=run_folder).split()), "belongs to the run in")


@pytest.mark.parametrize("name", ["report", "plot_attention", "export", "bench/speed"])
def test_a_target_that_cannot_be_written_is_told_before_the_work(script, run_folder, name):
    needed = {"plot_attention": ["text=x"], "export": ["format=ctranslate2"]}.get(name, [])
    options = ["--run=/nowhere", "--output=/proc/x/y"] if name == "bench/speed" else [f"run={run_folder}", "output=/proc/x/y"]
    assert_user_error(script(name, *options, *needed), "/proc/x", "cannot be written")


def test_a_full_disk_is_told_before_the_work(run_folder, bad):
    """No file may grow past 20 kB here, which stands for a disk that is full."""
    files = [f"source_file={bad}/utf8.en", f"reference_file={bad}/utf8.de"]
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), f"run={run_folder}", *files]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, preexec_fn=limit, env=os.environ)
    assert_user_error(result, f"{run_folder}: cannot be written: File too large")  # and no scores on stdout


def test_an_evaluation_is_not_written_through_a_link(script, run_folder, bad, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "evaluation-utf8.en").symlink_to(tmp_path)
    files = [f"source_file={bad}/utf8.en", f"reference_file={bad}/utf8.de"]
    assert_user_error(script("evaluate", f"run={tmp_path}/run", *files), "evaluation-utf8.en: is a link")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.torture
def test_a_full_disk_while_training(script, bad, tmp_path):
    """No file may grow past 20 kB here, which stands for a disk that is full; what was there stays."""
    base = ["data=files", f"data.train={bad}/good.tsv", f"runs={tmp_path}", "name=run", f"data.cache={tmp_path}/cache", *SHORT]
    assert script("train", *base).returncode == 0  # so that the data are prepared
    shutil.rmtree(tmp_path / "run")
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *base]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, preexec_fn=limit, env=os.environ)
    assert_user_error(result, "tokenizer.source.model: cannot be written")
    assert not (tmp_path / "run" / "config.yaml").exists()
