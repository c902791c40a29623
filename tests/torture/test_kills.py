"""A training killed at any instant and begun again is the one never interrupted.

Real runs of scripts/train.py get SIGKILL at random instants of every phase, are started again by the same command, and must end
with the same files, bit for bit. So must one on a stream, one of two processes, and one of both kinds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from tests.support.paths import ROOT
from tests.support.processes import needs_proc, workers_of
from translator.data.sources import SPLITS
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import load_tensors

KILLS = int(os.environ.get("KILLS", "4"))
# Kills that one run has to survive, at most.
KILLS_OF_A_RUN = 5
UPDATES, VALIDATE_EVERY = 40, 5
OPTIONS = [
    "data=files", *TINY, "model.dropout=0.1", "tokenizer.sampling=0.2", "data.augment.lower=0.3", "data.augment.no_stop=0.3",
    "data.augment.typos=0.3", "data.augment.placeholders=0.2",
    "optim.ema_decay=0.9", "optim.warmup_updates=5", "train.batch_tokens=150", "train.accumulation=2", "train.log_every=1",
    f"train.max_updates={UPDATES}", "train.max_epochs=null", "train.max_minutes=null", f"train.validate_every={VALIDATE_EVERY}",
    "train.average_count=3", "train.keep=[chrf,loss]"]
NOT_REPEATED = {"train/tokens_per_second"}

Instant = Callable[["Run"], None]


@dataclass(frozen=True)
class Kind:
    """A way to train, and how often it is killed."""

    kills: int
    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


SOME = -(-KILLS // 5)
STREAM = ("data.window=80", "tokenizer.vocab_size=320")  # several passes over the corpus
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
KINDS = {
    "plain": Kind(KILLS), "streamed": Kind(SOME, options=STREAM), "two processes": Kind(SOME, launcher=TWO),
    "streamed by two processes": Kind(SOME, launcher=TWO, options=STREAM),
}


class Run:
    """A training under way in a process of its own, or in several."""

    def __init__(self, kind: Kind, data: Path, folder: RunFolder, seconds: float) -> None:
        """`seconds`: from start to end, of a run left alone."""
        self.folder = folder
        self.seconds = seconds
        self.process = subprocess.Popen(
            [sys.executable, *kind.launcher, str(ROOT / "scripts" / "train.py"), *OPTIONS, *kind.options,
             *(f"data.{split}={data / split}.tsv" for split in SPLITS), f"data.cache={data}",
             f"runs={folder.path.parent}", f"name={folder.path.name}"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> None:
        """All of its processes: a launcher that is stopped first cannot start others meanwhile."""
        self.process.send_signal(signal.SIGSTOP)
        for process in (*workers_of(self.process), self.process.pid):
            os.kill(process, signal.SIGKILL)

    def end(self) -> int:
        """Its exit code; it must have been killed, or have ended well."""
        _, said = self.process.communicate()
        assert self.process.returncode in (0, -signal.SIGKILL), said.decode()
        return self.process.returncode

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Until that, or the end."""
        while self.process.poll() is None and not happened():
            time.sleep(0.0005)

    def validations(self) -> int:
        """How many are in the file of measurements."""
        try:
            return self.folder.metrics_file.read_text().count("validation/loss")
        except FileNotFoundError:
            return 0

    def updates(self) -> int:
        """How many updates the file of measurements tells of."""
        try:
            return self.folder.metrics_file.read_text().count("train/loss")
        except FileNotFoundError:
            return 0


def while_starting(run: Run) -> None:
    time.sleep(random.uniform(0, 0.7 * run.seconds))


def while_training(run: Run) -> None:
    """In the midst of an update, of its accumulation or between two."""
    some = run.updates() + random.randint(1, UPDATES // 2)
    run.wait_until(lambda: run.updates() >= some)
    time.sleep(random.uniform(0, 0.1))


def while_validating(run: Run) -> None:
    before = run.updates()
    due = (before // VALIDATE_EVERY + random.randint(1, 2)) * VALIDATE_EVERY
    run.wait_until(lambda: run.updates() >= due)
    time.sleep(random.uniform(0, 0.05))


def while_saving(run: Run) -> None:
    skip = random.randint(0, 2)
    known = run.validations()
    run.wait_until(lambda: run.validations() > known + skip)
    run.wait_until(lambda: any(run.folder.checkpoints.path.glob(".*.partial")))
    time.sleep(random.choice([0, random.uniform(0, 0.02)]))


def while_ending(run: Run) -> None:
    """While the average is measured, or the test split translated."""
    run.wait_until(lambda: run.validations() >= UPDATES // VALIDATE_EVERY)
    time.sleep(random.uniform(0, 0.5))


INSTANTS: list[Instant] = [while_training, while_saving, while_validating, while_ending, while_starting]


def contents(folder: RunFolder) -> dict[str, Any]:
    """All that a run leaves but the time it took."""
    weights, training, state = folder.checkpoints.load(UPDATES)
    lines = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()
    return {
        "checkpoints": sorted(path.name for path in folder.checkpoints.path.iterdir()),
        "weights": weights | {f"training.{name}": tensor for name, tensor in training.items()},
        "model": load_tensors(folder.model_file),
        **{f"best by {metric}": folder.best(metric).load_weights() for metric in ("chrf", "loss")},
        "best": [folder.best(metric).load_outcome() for metric in ("chrf", "loss")],
        "state": {name: value for name, value in state.items() if name not in ("seconds", "recorded")},
        "outcome": folder.load_outcome(),
        "metrics": [{name: value for name, value in line.items() if name not in NOT_REPEATED} for line in lines],
        "curves": {
            name: [(event.step, event.value) for event in events.Scalars(name)]
            for name in events.Tags()["scalars"] if name not in NOT_REPEATED},
        "maps": [event.step for event in events.Images("validation/attention")],
        "samples": [
            (event.step, event.tensor_proto.string_val[0]) for event in events.Tensors("validation/samples/text_summary")],
        "test": (folder.path / "evaluation-test" / "hypothesis.txt").read_text(),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, values in expected.items():
        if isinstance(values, dict) and all(isinstance(value, torch.Tensor) for value in values.values()):
            assert found[name].keys() == values.keys(), name
            assert all(torch.equal(found[name][key], values[key]) for key in values), name
        else:
            assert found[name] == values, name


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, pairs in zip(SPLITS, (PAIRS[40:], PAIRS[:20], PAIRS[20:40]), strict=True):
        write_pairs(folder / f"{split}.tsv", pairs)
    return folder


@needs_proc
@pytest.mark.parametrize("name", KINDS)
def test_run_killed_repeatedly_equals_the_uninterrupted_run(data, tmp_path, name):
    kind = KINDS[name]
    started = time.monotonic()
    untouched = RunFolder(tmp_path / "untouched")
    assert Run(kind, data, untouched, 0).end() == 0
    expected, seconds = contents(untouched), time.monotonic() - started
    random.seed(KILLS)
    kills: Counter[str] = Counter()
    runs = 0
    while kills.total() < kind.kills:
        runs += 1
        folder = RunFolder(tmp_path / f"run-{runs}")
        for _ in range(min(KILLS_OF_A_RUN, kind.kills - kills.total())):
            instant = INSTANTS[kills.total() % len(INSTANTS)]
            run = Run(kind, data, folder, seconds)
            instant(run)
            if run.process.poll() is None:
                run.kill()
            if run.end() == 0:  # before it could be killed
                break
            kills[instant.__name__] += 1
        assert Run(kind, data, folder, seconds).end() == 0
        assert_same(contents(folder), expected)
    print(f"\n{name}: {kills.total()} kills of {runs} runs, all of which ended as the run never killed:", dict(kills))
