"""MLflow: a server or a local database, as MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from translator.runs.trackers.feed import PROJECT

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PARAMS, LONGEST_PARAM = 100, 500  # of a request


class Run:
    """A run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, name: str, folder: Path, options: Mapping[str, object], known: str | None) -> None:
        """`known`: the id of the run to continue."""
        self._client = MlflowClient()
        self.is_new = known is None or not self._reopened(known)
        self.id: str = self._create(name, options) if self.is_new or known is None else known
        self.delay = 0.0

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.id, [Metric(_valid(name), value, now, update) for name, value in values.items()])

    def table(self, update: int, name: str, rows: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        self._client.log_text(self.id, text.getvalue(), f"{_valid(name)}/{update:08}.csv")

    def attention_map(self, update: int, name: str, picture: Image) -> None:
        self._client.log_image(self.id, picture, f"{_valid(name)}/{update:08}.png")

    def finish(self) -> None:
        self._client.set_terminated(self.id)

    def _reopened(self, known: str) -> bool:
        """Mark a run as running; return whether there is one."""
        try:
            self._client.update_run(known, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _create(self, name: str, options: Mapping[str, object]) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(title)
        number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
        run: str = self._client.create_run(number, run_name=name).info.run_id
        params = [Param(option, str(value)[:LONGEST_PARAM]) for option, value in options.items()]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(run, params=params[start : start + MOST_PARAMS])
        return run


def _valid(name: str) -> str:
    """Replace characters that MLflow does not allow in names, such as the + of chrf++."""
    return re.sub(r"[^\w\-. :/]", "_", name)
