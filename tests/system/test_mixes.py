"""Several corpora through the commands: train in stages, evaluate and report by corpus."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.configurations import TINY
from tests.support.corpora import PAIRS, write_pairs
from translator.runs.run_folder import RunFolder


def test_corpora_are_trained_scored_and_shown_apart(script, tmp_path: Path):
    files = {name: write_pairs(tmp_path / f"{name}.tsv", PAIRS[start : start + 20 * size]) for name, start, size in (
        ("a", 0, 4), ("a-held", 80, 1), ("b", 100, 2), ("b-held", 140, 1))}
    corpora = ",".join(
        f"{{name:{name},train:{files[name]},validation:{files[f'{name}-held']},test:{files[f'{name}-held']},weight:{weight}}}"
        for name, weight in (("a", 3), ("b", 1)))
    trained = script(
        "train", "data=mix", f"data.corpora=[{corpora}]", f"data.cache={tmp_path / 'cache'}",
        f"runs={tmp_path / 'runs'}", *TINY, "train.stages=[{share:0.5},{corpora:[b],rate:0.5}]", "train.max_minutes=null",
        "train.max_updates=2", "search=greedy", "train.validate_every=2", "train.batch_tokens=500")
    said = trained.stderr.decode()
    assert trained.returncode == 0, said
    [run] = (tmp_path / "runs").iterdir()
    assert run.name == "mix-a-b-en-de-tiny"
    for line in ("  a        80 of 80 pairs", "  b        40 of 40 pairs",
                 "stage 1    a 75.0 %, b 25.0 %, to 50 % of the training", "stage 2    b 100.0 %, rate × 0.5",
                 "stage      2 of 2 from update 2", "BLEU by corpus:"):
        assert line in said, said
    measured = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum({"validation/bleu.a", "validation/bleu.b"} <= line.keys() for line in measured) == 1
    scored = script("evaluate", f"run={run}", "search.beam_size=1", "worst=0")
    assert scored.returncode == 0, scored.stderr.decode()
    assert "(20 sentences)\nBLEU by source words" in scored.stdout.decode()
    assert json.loads((run / "evaluation-test" / "scores.json").read_text())["by_corpus"].keys() == {"a", "b"}
    assert RunFolder(run).load_report()["corpora"]["train"]["a"]["kept"] == 80
    reported = script("report", f"run={run}", "search.beam_size=1")
    assert reported.returncode == 0, reported.stderr.decode()
    page = Path(reported.stdout.decode().strip()).read_text()
    assert "by corpus" in page
    assert "<td>b<small>train</small></td>" in page
