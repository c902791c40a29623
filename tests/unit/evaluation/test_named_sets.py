"""Test sets by name: found where the hub, sacreBLEU and the web keep them, scored as sacreBLEU scores, refused in one line."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sacrebleu.dataset.base
from sacrebleu.dataset import DATASETS
from sacrebleu.metrics import BLEU, CHRF

from tests.support.commands import assert_user_error
from tests.support.corpora import PAIRS, write_pairs
from tests.support.hub import Hub, Repository, running_hub
from translator.config.building import build, read_yaml, to_yaml
from translator.config.presets import CONF
from translator.config.test_set import PublicTestSet
from translator.evaluation import test_sets
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

SHORT = ("device=cpu", "search.max_length=24", "search.beam_size=2", "metrics=[bleu,chrf]")
FIRST, SECOND, THIRD = PAIRS[50:80], PAIRS[80:110], PAIRS[110:140]
EN_DE = ("en", "de")


def texts(pairs: list[tuple[str, str]], side: int) -> list[str]:
    return [pair[side] for pair in pairs]


def parquet(lines: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(len(lines))), "text": lines}), file)
    return file.getvalue()


def json_lines(pairs: list[tuple[str, str]], bad: int) -> bytes:
    rows = [{"lp": "x", "is_bad_source": n < bad, "source": s, "target": t} for n, (s, t) in enumerate(pairs)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        server.repositories |= {
            "openlanguagedata/flores_plus": Repository({"main": {
                "README.md": b"# FLORES+\n", "devtest/ger_Latn_test1234.parquet": parquet(["falsch"]),
                "devtest/eng_Latn.parquet": parquet(texts(SECOND, 0)), "dev/eng_Latn.parquet": parquet(["wrong"]),
                "devtest/deu_Latn.parquet": parquet(texts(SECOND, 1)), "devtest/fra_Latn.parquet": parquet(["faux"])}}),
            "google/wmt24pp": Repository({"main": {
                "en-de_DE.jsonl": json_lines(THIRD, bad=3), "en-de_CH.jsonl": json_lines(FIRST, bad=0),
                "en-fr_CA.jsonl": json_lines(THIRD, bad=0)}}),
            "someone/web": Repository({"main": {
                f"test.{language}.gz": gzip.compress("".join(f"{text}\n" for text in texts(FIRST, side)).encode())
                for side, language in enumerate(EN_DE)}})}
        yield server


@pytest.fixture
def fetched(hub: Hub, tmp_path, monkeypatch) -> Hub:
    """The libraries of this process ask the loopback server, and cache below a folder of the test."""
    address = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sacrebleu.dataset.base, "SACREBLEU_DIR", str(tmp_path / "sacrebleu"))
    for dataset in DATASETS.values():
        monkeypatch.setattr(dataset, "_outdir", str(tmp_path / "sacrebleu" / dataset.name))
        monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "sacrebleu" / dataset.name / "raw"))
    return hub


def in_sgml_cache(folder: Path, name: str, pair: str, sources: list[str], *references: list[str]) -> None:
    """Write a test set as sacreBLEU keeps it once it has extracted a set of before 2021."""
    (folder / name).mkdir(parents=True)
    named = [f"ref:{number}" for number in range(len(references))] if len(references) > 1 else ["ref"]
    fields = {"src": sources} | dict(zip(named, references, strict=True))
    fields |= dict.fromkeys(("docid", "genre", "origlang"), sources)
    for field, lines in fields.items():
        file = folder / name / f"{name.replace('/', '_')}.{pair}.{field.replace(':', '-')}"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def in_xml_cache(folder: Path, name: str, path: str, sources: list[str], **references: list[str]) -> None:
    """Write a test set as sacreBLEU keeps it once it has unpacked a set of 2021 or later."""
    def part(tag: str, lines: list[str]) -> str:
        segments = "".join(f'<seg id="{n}">{line}</seg>' for n, line in enumerate(lines))
        return f"<{tag}><p>{segments}</p></{tag.split()[0]}>"

    raw = folder / name / "raw"
    (raw / path).parent.mkdir(parents=True)
    for url in DATASETS[name].data:  # not to be downloaded
        (raw / f"{name.replace('/', '_')}.{url.rsplit('/')[-1]}").write_text("x")
    body = part('src lang="en"', sources)
    body += "".join(part(f'ref lang="de" translator="{who}"', lines) for who, lines in references.items())
    (raw / path).write_text(f'<dataset><doc id="a" origlang="en">{body}</doc></dataset>', encoding="utf-8")


def run_with_data(run: Path, copy: Path, **languages: str) -> Path:
    """A copy of a run that was trained on the first sixty pairs."""
    data = {"path": None, "train": str(write_pairs(copy.with_name("train.tsv"), PAIRS[:60])), "holdout": 5} | languages
    data["cache"] = str(copy.with_name("cache"))
    copy.with_name("cache").mkdir()
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("evaluation-*"))
    folder = RunFolder(copy)
    config = folder.load_config()
    folder.config_file.write_text(to_yaml(dataclasses.replace(config, data=dataclasses.replace(config.data, **data))))
    return copy


def test_every_preset_builds():
    for file in (CONF / "test_set").glob("*.yaml"):
        assert "{" in build(PublicTestSet, read_yaml(file)).files


def test_one_table_of_sets_as_sacrebleu_scores_them(script, trained_folder, hub, tmp_path):
    """The files written have the scores, intervals and signatures that are printed; sentences of the training are named."""
    in_sgml_cache(tmp_path / "sacrebleu", "wmt14", "en-de", texts(FIRST, 0), texts(FIRST, 1))
    own, run = write_pairs(tmp_path / "own.tsv", THIRD), run_with_data(trained_folder, tmp_path / "run")
    result = script("evaluate", f"run={run}", f"sets=[wmt14,flores,{own}]", *SHORT, HF_ENDPOINT=hub.url,
                    HF_HOME=str(tmp_path / "home"), SACREBLEU=str(tmp_path / "sacrebleu"), no_proxy="127.0.0.1",
                    HF_HUB_OFFLINE="0")
    assert result.returncode == 0, result.stderr
    table = result.stdout.decode()
    for name, pairs in (("wmt14", FIRST), ("flores", SECOND), ("own.tsv", THIRD)):
        folder = run / f"evaluation-{name}"
        source, reference, output = (
            (folder / f"{file}.txt").read_text(encoding="utf-8").splitlines() for file in ("source", "reference", "hypothesis"))
        assert list(zip(source, reference, strict=True)) == pairs
        found = re.search(rf"^{re.escape(name)} +30  +([\d.]+) ± ([\d.]+)  +([\d.]+) ± ([\d.]+)$", table, re.MULTILINE)
        assert found, table
        for value, interval, metric in ((found[1], found[2], BLEU()), (found[3], found[4], CHRF())):
            theirs = metric.corpus_score(output, [reference], n_bootstrap=1000)
            assert (float(value), float(interval)) == pytest.approx((theirs.score, theirs._ci), abs=0.006)
            assert str(metric.get_signature()).replace("|bs:1000|seed:12345", "") in table
        saved = json.loads((folder / "scores.json").read_text())
        assert saved["test_set"] == name
        assert bool(saved["citation"]) == (name != "own.tsv")
        assert set(saved["confidence"]) == {"BLEU", "chrF2"}
    assert [scores["test_set"] for scores in RunFolder(run).load_test_sets()] == ["flores", "own.tsv", "wmt14"]
    assert re.search("warning: .* was trained on .* of the 30 sentences of wmt14", result.stderr.decode())
    assert "sentences of flores" not in result.stderr.decode()


def test_systems_are_compared_on_each_set(script, trained_folder, run_folder, tmp_path):
    """A table of one's own twice by name is two sets; each row against the first has a p."""
    files = [write_pairs(tmp_path / name / "own.tsv", pairs) for name, pairs in (("a", FIRST), ("b", SECOND[:9]))
             if not (tmp_path / name).mkdir()]
    (tmp_path / "other").mkdir()
    run, other = (run_with_data(folder, tmp_path / place / "run") for folder, place in (
        (trained_folder, "."), (run_folder, "other")))
    result = script("evaluate", f"run={run}", f"against={other}", f"sets=[{files[0]},{files[1]}]", *SHORT)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.decode().splitlines() if line.startswith("own.tsv")]
    assert [(str(run) in row, " 30 " in row, "(p = " in row) for row in rows] == [
        (False, True, False), (True, True, True), (False, False, False), (True, False, True)]
    assert (run / "evaluation-own.tsv-2").is_dir()


def test_all_references_of_a_set_count(fetched, tmp_path):
    xml = DATASETS["wmt21/AB"].langpairs["en-de"][0]
    in_xml_cache(tmp_path / "sacrebleu", "wmt21/AB", xml, texts(FIRST, 0), A=texts(SECOND, 1), B=texts(FIRST, 1))
    found = test_sets.load_named("wmt21/AB", EN_DE)
    assert (found.name, found.sources) == ("wmt21_AB", texts(FIRST, 0))
    assert sorted(found.references) == sorted([texts(SECOND, 1), texts(FIRST, 1)])


@pytest.mark.parametrize(("direction", "pairs"), [
    (EN_DE, THIRD[3:]), (("eng_Latn", "de-CH"), FIRST), (("en", "fr"), THIRD)])
def test_the_closest_file_of_a_pair_is_read(fetched, direction, pairs):
    """Without the rows that its authors call bad."""
    found = test_sets.load_named("wmt24pp", direction)
    assert [found.sources, *found.references] == [texts(pairs, 0), texts(pairs, 1)]


def test_a_fetched_set_needs_no_network(fetched, monkeypatch):
    first = test_sets.load_named("flores", ("de", "en"))
    assert (first.sources, first.references) == (texts(SECOND, 1), [texts(SECOND, 0)])
    assert not any("fra_Latn" in request for request in fetched.requests)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert test_sets.load_named("flores", ("de", "en")) == first


def test_a_file_of_conf_adds_a_set_of_the_web(fetched, tmp_path, monkeypatch):
    (tmp_path / "test_set").mkdir()
    (tmp_path / "test_set" / "mine.yaml").write_text(
        f"files: {fetched.url}/datasets/someone/web/resolve/main/test.{{language}}.gz\nlanguages: [en, de, cs]\ncitation: me\n")
    monkeypatch.setattr(test_sets, "CONF", tmp_path)
    for direction, sides in ((EN_DE, (0, 1)), (("de", "en"), (1, 0))):
        found = test_sets.load_named("mine", direction)
        assert [found.sources, *found.references] == [texts(FIRST, side) for side in sides]
    with pytest.raises(UserError, match="sets=mine: has no en-fr, but .*de-en.*en-cs"):
        test_sets.load_named("mine", ("en", "fr"))
    with pytest.raises(UserError, match="sets=mine: could not be loaded: .*404.*Check the network"):
        test_sets.load_named("mine", ("en", "cs"))


def test_what_cannot_be_loaded_is_one_line(fetched, monkeypatch):
    with pytest.raises(UserError, match="sets=wmt23: has no en-fr, but .*en-de"):
        test_sets.load_named("wmt23", ("en", "fr"))
    with pytest.raises(UserError, match="sets=wmt24pp: has no de-en. See "):
        test_sets.load_named("wmt24pp", ("de", "en"))
    gated = (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to dataset is restricted"})
    with monkeypatch.context() as changed:
        changed.setattr(fetched.repositories["openlanguagedata/flores_plus"], "refusal", gated)
        with pytest.raises(UserError, match="sets=flores: is gated. .*/openlanguagedata/flores_plus, then .*hf auth login"):
            test_sets.load_named("flores", EN_DE)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="sets=flores: could not be loaded: .*Check the network"):
        test_sets.load_named("flores", EN_DE)


@pytest.mark.parametrize(("options", "words"), [
    (["sets=[wmt32]"], "sets=wmt32: no such test set; did you mean sets=wmt24?"),
    (["sets=[missing.tsv]"], "missing.tsv: no such file"),
    (["sets=[wmt14]", "split=validation"], "split: has no meaning for sets"),
    (["sets=[wmt14]", "source_file=a", "reference_file=b"], "sets: and source_file are two inputs"),
    (["sets=[wmt14]", "source=en", "target=fr"], "translates en to de")])
def test_what_does_not_fit_is_refused_in_one_line(script, run_folder, options, words):
    assert_user_error(script("evaluate", f"run={run_folder}", *options), words)


def test_a_model_of_several_languages_needs_a_direction(script, run_folder, tmp_path):
    run = run_with_data(run_folder, tmp_path / "run", source="en+de", target="en+de")
    own = write_pairs(tmp_path / "own.tsv", FIRST[:3])
    assert_user_error(script("evaluate", f"run={run}", f"sets={own}"), "has 2 directions. Choose one by source= and target=")
    result = script("evaluate", f"run={run}", f"sets={own}", "source=de", "target=en", *SHORT)
    assert result.returncode == 0, result.stderr
    assert (run / "evaluation-own.tsv-de-en" / "source.txt").read_text().startswith(">>en<< ")
