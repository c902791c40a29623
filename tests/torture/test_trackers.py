"""The real tracking libraries, offline and each in an environment of its own, have every point of a killed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from pathlib import Path

import pytest

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT

OPTIONS = [
    "data=files", *TINY, "train.batch_tokens=150", "train.log_every=1", "train.max_epochs=null", "train.max_minutes=null"]

# Each prints the points of a run as [name, update, value], in the tracker's own environment.
READERS = {
    "wandb": """
import struct
from wandb.proto.wandb_internal_pb2 import Record
for file in sorted(folder.glob("runs/r/wandb/offline-run-*/*.wandb")):
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):  # a log of LevelDB: blocks of 32 KiB
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts, at = parts + content[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            record, parts = Record.FromString(parts), b""
            points += [[item.key or "/".join(item.nested_key), record.history.step.num, json.loads(item.value_json)]
                       for item in record.history.item]
""",
    "mlflow": """
from mlflow import MlflowClient
client = MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name("translator").experiment_id])
points = [[m.key, m.step, m.value] for name in run.data.metrics for m in client.get_metric_history(run.info.run_id, name)]
""",
    "trackio": """
import sqlite3
[file] = (folder / "trackio").glob("*.db")
for step, metrics in sqlite3.connect(file).execute("select step, metrics from metrics"):
    points += [[name, step, value] for name, value in json.loads(metrics).items()]
"""}


def environment(folder: Path, extra: str) -> tuple[Path, dict[str, str]]:
    """Install an extra beside the packages of this environment; return its Python, and variables that keep all here."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    [site] = (folder / "venv" / "lib").glob("*/site-packages")
    (site / "base.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--constraint",
                    str(ROOT / "constraints.txt"), *wanted], check=True)
    return python, os.environ | {
        "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def data_options(folder: Path) -> list[str]:
    for split, pairs in {"train": PAIRS[8:], "validation": PAIRS[:6], "test": PAIRS[6:12]}.items():
        write_pairs(folder / f"{split}.tsv", pairs)
    return [f"data.cache={folder}", f"runs={folder}/runs",
            *(f"data.{split}={folder}/{split}.tsv" for split in ("train", "validation", "test"))]


@pytest.mark.parametrize("name", READERS)
def test_a_killed_run_is_tracked_whole(tmp_path: Path, name: str):
    python, variables = environment(tmp_path, name)
    command = [python, "-m", "translator", "train", *OPTIONS, *data_options(tmp_path), "train.max_updates=12",
               "train.validate_every=4", "name=r", f"tracker={name}"]
    measured = tmp_path / "runs" / "r" / "metrics.jsonl"
    process = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not measured.exists() or measured.read_text().count("train/loss") < 7):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stdout
    assert f"warning: tracker={name}" not in result.stderr
    reader = f"import json; from pathlib import Path; folder, points = Path({str(tmp_path)!r}), []\n{READERS[name]}"
    printed = subprocess.run([python, "-c", f"{reader}\nprint(json.dumps(points))"], cwd=tmp_path, env=variables,
                             capture_output=True, text=True, check=True).stdout
    points = [(point, update) for point, update, _ in json.loads(printed.splitlines()[-1])]
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    expected = {(point, line["update"]) for line in lines for point in line if point != "update"}
    expected |= {(f"final/{metric}", 12) for metric in ("bleu", "chrf", "loss", "perplexity")}
    assert expected <= set(points)
    doubled = {point for point in points if points.count(point) > 1 and not point[0].startswith("_")}
    assert not doubled or name == "wandb"  # which keeps a part of a second in memory, so that is sent again
    assert not {point for point in doubled if point[1] > 8}


def test_optuna_sweeps_and_the_trials_are_listed(tmp_path: Path):
    python, variables = environment(tmp_path, "sweep")
    sweep = ["hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1",
             "optim.lr=tag(log,interval(1e-3,1e-2))", "name=trial-${hydra:job.num}", "train.max_updates=4",
             "train.validate_every=4"]
    subprocess.run([python, "-m", "translator", "train", "-m", *sweep, *OPTIONS, *data_options(tmp_path)], cwd=tmp_path,
                   env=variables, check=True)
    header, *trials = (line.split("\t") for line in (tmp_path / "runs" / "trials.tsv").read_text().splitlines())
    assert header[:3] == ["run", "metric", "score"]
    assert {trial[0] for trial in trials} == {"trial-0", "trial-1"}
    assert len({trial[header.index("optim.lr")] for trial in trials}) == 2
