"""A sweep's table lists every run once, best first."""

from __future__ import annotations

from pathlib import Path

from translator.runs.trials import add_trial


def test_trials_are_listed_once_and_best_first(tmp_path: Path):
    add_trial(tmp_path / "0", "bleu", 20.0, ["runs=x", "optim.lr=0.1"])
    add_trial(tmp_path / "1", "bleu", 30.0, ["runs=x", "+model.dropout=0.2"])
    add_trial(tmp_path / "0", "bleu", 25.0, ["runs=x", "optim.lr=0.1"])
    assert (tmp_path / "trials.tsv").read_text() == (
        "run\tmetric\tscore\tmodel.dropout\toptim.lr\n1\tbleu\t30.0000\t0.2\t\n0\tbleu\t25.0000\t\t0.1\n")


def test_a_lower_loss_is_listed_first(tmp_path: Path):
    for name, loss in (("a", 2.0), ("b", 1.0)):
        add_trial(tmp_path / name, "loss", loss, [])
    assert [line.split("\t")[0] for line in (tmp_path / "trials.tsv").read_text().splitlines()] == ["run", "b", "a"]
