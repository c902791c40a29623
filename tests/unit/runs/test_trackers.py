"""Measurements reach a tracking service once each, also after kills and failures, and failures never reach the training."""

from __future__ import annotations

import dataclasses
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.trainings import training_config
from translator.config.options import RunConfig
from translator.runs.tensorboard import Tracker
from translator.runs.trackers import feed
from translator.runtime.errors import UserError


class FakeService:
    """Keeps runs by id, as a server does."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, str, float]]] = {}
        self.shown: list[tuple[int, str]] = []
        self.failures = 0  # of the next calls
        self.options: dict[str, Any] = {}
        self.delay = 0.0

    def run(self, name: str, folder: Path, options: dict[str, Any], known: str | None) -> Any:
        self._may_fail()
        self.options = options
        is_new = known not in self.points
        run = known if known and not is_new else f"run-{len(self.points)}"
        points = self.points.setdefault(run, [])

        def scalars(update: int, values: dict[str, float]) -> None:
            self._may_fail()
            points.extend((update, name, value) for name, value in values.items())

        def show(update: int, name: str, _: object) -> None:
            self._may_fail()
            self.shown.append((update, name))

        return SimpleNamespace(id=run, is_new=is_new, delay=self.delay, scalars=scalars, table=show, attention_map=show,
                               finish=lambda: None)

    def updates(self, run: str = "run-0") -> list[int]:
        return [update for update, *_ in self.points[run]]

    def _may_fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no\nnetwork")


@pytest.fixture
def service(monkeypatch) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(feed, "import_module", lambda _: SimpleNamespace(Run=fake.run))
    return fake


@cache
def config() -> RunConfig:
    return dataclasses.replace(training_config(), tracker="wandb")


def tracker(folder: Path, recorded: dict[str, int] | None = None) -> Tracker:
    return Tracker(folder / "metrics.jsonl", folder / "tensorboard", recorded or {}, config())


def measure(tracked: Tracker, *updates: int) -> None:
    for update in updates:
        tracked.scalars(update, {"train/loss": 1 / update})


def test_a_killed_and_resumed_run_sends_each_point_once(tmp_path: Path, service: FakeService):
    first = tracker(tmp_path)
    measure(first, 1, 2)
    recorded = first.flush()
    measure(first, 3)  # after the last checkpoint
    first.table(3, "validation/samples", [("source",), ("a",)])
    first.close()
    second = tracker(tmp_path, recorded)
    measure(second, 3, 4)
    second.table(3, "validation/samples", [("source",), ("a",)])
    second.end(4, {"bleu": 1.0})
    second.close()
    third = tracker(tmp_path, second.flush())  # nothing left to train
    third.end(4, {"bleu": 1.0})
    third.close()
    assert service.points == {"run-0": [*((n, "train/loss", 1 / n) for n in (1, 2, 3, 4)), (4, "final/bleu", 1.0)]}
    assert service.shown == [(3, "validation/samples")]
    assert service.options["train.batch_tokens"] == 200


def test_points_that_a_kill_may_have_lost_are_sent_again(tmp_path: Path, service: FakeService):
    service.delay = 1000
    killed = tracker(tmp_path)
    recorded = killed.flush()
    killed._feed._service.finish = None  # type: ignore[union-attr]
    measure(killed, 1, 2)
    killed._feed.close()  # type: ignore[union-attr]
    again = tracker(tmp_path, recorded)
    measure(again, 1, 2, 3)
    again.close()
    assert service.updates() == [1, 2, 1, 2, 3]


def test_a_failing_service_gets_every_point_later(tmp_path: Path, service: FakeService, capsys):
    tracked = tracker(tmp_path)
    service.failures = 2
    measure(tracked, 1, 2, 3)
    tracked.close()
    assert service.updates() == [1, 2, 3]
    warnings = capsys.readouterr().err
    assert warnings.count("no network") == 1
    assert "Training continues" in warnings


def test_a_failing_picture_does_not_hold_up_points(tmp_path: Path, service: FakeService):
    tracked = tracker(tmp_path)
    tracked._feed._service.table = None  # type: ignore[union-attr]
    tracked.table(1, "validation/samples", [("source",), ("a",)])
    tracked.attention_map(1, "validation/attention", torch.ones(1, 1, 1), ["a"], ["b"])
    measure(tracked, 1)
    tracked.close()
    assert service.updates() == [1]
    assert service.shown == [(1, "validation/attention")]


def test_an_unreachable_service_is_filled_on_resuming(tmp_path: Path, service: FakeService, capsys):
    service.failures = 1
    tracked = tracker(tmp_path)
    measure(tracked, 1, 2)
    tracked.close()
    assert not service.points
    assert "no network. Training continues" in capsys.readouterr().err
    tracked = tracker(tmp_path, tracked.flush())
    measure(tracked, 3)
    tracked.close()
    assert service.updates() == [1, 2, 3]


def test_a_run_the_service_has_lost_is_sent_whole(tmp_path: Path, service: FakeService):
    tracked = tracker(tmp_path)
    measure(tracked, 1)
    tracked.close()
    service.points = {"other": []}
    tracker(tmp_path, tracked.flush()).close()
    assert service.updates("run-1") == [1]


@pytest.mark.parametrize("content", ["", "[]", '{"tracker": "wandb", "id": "../x", "sent": {}}', '{"tracker": "mlflow"}'])
def test_a_damaged_record_begins_another_tracked_run(tmp_path: Path, service: FakeService, content: str):
    (tmp_path / ".tracker.json").write_text(content)
    tracked = tracker(tmp_path)
    measure(tracked, 1)
    tracked.close()
    assert service.updates() == [1]


def test_a_service_that_hangs_does_not_hold_up_the_end(tmp_path: Path, service: FakeService, monkeypatch, capsys):
    monkeypatch.setattr(feed, "CLOSING_SECONDS", 0.05)
    release = threading.Event()
    tracked = tracker(tmp_path)
    tracked._feed._service.scalars = lambda *_: release.wait(30)  # type: ignore[union-attr]
    measure(tracked, 1)
    tracked.close()
    assert "no answer in 0.05 seconds" in capsys.readouterr().err
    release.set()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_library_is_named_before_training(monkeypatch, name: str):
    monkeypatch.setattr(feed, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"tracker={name}: {name} is not installed. .*{name}"):
        feed.require_tracker(name)
    feed.require_tracker("tensorboard")
