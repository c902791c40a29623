"""The report says what the sacrebleu command says of the files it wrote."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import assert_user_error
from tests.support.configurations import search_config
from tests.support.corpora import PAIRS, json_lines, write_pairs
from translator.config.building import to_yaml
from translator.data.preparation import prepare
from translator.evaluation.evaluate import compare, describe, describe_comparison, evaluate
from translator.evaluation.held_out import corpora_of_split, held_out, warn_of_unfair_scores
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

SOURCES = [source for source, _ in PAIRS[:24]]
REFERENCES = [target for _, target in PAIRS[:24]]


# Random weights seldom end a sentence: a low limit saves the time.
SHORT = ("device=cpu", "search.max_length=10", "search.beam_size=2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "test.en").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (folder / "test.de").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    return folder


def evaluate_script(script, run: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return script("evaluate", f"run={run}", *SHORT, *options, **environment)


def pair_of(files: Path, references: str = "test.de") -> tuple[str, str]:
    return f"source_file={files / 'test.en'}", f"reference_file={files / references}"


def test_the_sacrebleu_command_agrees(script, run_folder, files):
    result = evaluate_script(script, run_folder, *pair_of(files), "worst=2", LC_ALL="C", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    printed = result.stdout.decode()
    folder = run_folder / "evaluation-test.en"
    scores = json.loads((folder / "scores.json").read_text())["scores"]
    command = subprocess.run(
        [sys.executable, "-m", "sacrebleu", str(folder / "reference.txt"), "-i", str(folder / "hypothesis.txt"), "-m", "bleu",
         "chrf", "ter", "-w", "4"], capture_output=True, text=True, check=True)
    for theirs in json.loads(command.stdout):
        ours = next(s for s in scores.values() if s["name"] == theirs["name"])
        assert ours["value"] == pytest.approx(theirs["score"], abs=1e-3)
        assert ours["signature"] == theirs["signature"]
        assert theirs["signature"] in printed
    assert printed.count("source     ") == 2
    assert "24 sentences" in printed
    assert "hit the length limit" in printed


def test_the_robustness_table_is_printed_and_saved(script, trained_folder, tmp_path):
    run = shutil.copytree(trained_folder, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation-*"))
    for side, texts in (("en", SOURCES), ("de", REFERENCES)):
        (tmp_path / f"test.{side}").write_text("".join(f"{text}\n" for text in texts[:5]), encoding="utf-8")
    result = evaluate_script(script, run, *pair_of(tmp_path), "worst=0", "robustness=true")
    assert result.returncode == 0, result.stderr
    folder = run / "evaluation-test.en"
    assert (folder / "robustness.txt").read_text(encoding="utf-8") in result.stdout.decode()
    assert {"scored", "kept", "alignment"} == set(json.loads((folder / "robustness.json").read_text()))
    assert set(json.loads((folder / "scores.json").read_text())["hallucination"]) == {"unaligned", "repeated", "copied"}
    assert "tokens aligned to nothing" in result.stdout.decode()


def test_files_of_one_name_have_folders_of_their_own(script, trained_folder, files, tmp_path):
    run = shutil.copytree(trained_folder, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation-*"))
    other = shutil.copytree(files, tmp_path / "other")
    for file in (other / "test.en", other / "test.de"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:5]))
    for place, folder, sentences in ((files, "", 24), (other, "-2", 5), (other, "-2", 5), (files, "", 24)):
        result = evaluate_script(script, run, *pair_of(place), "worst=0")
        assert result.returncode == 0, result.stderr
        written = run / f"evaluation-test.en{folder}"
        assert f"written to {written}\n" in result.stdout.decode()
        assert json.loads((written / "scores.json").read_text())["sentences"] == sentences
    assert sorted(path.name for path in run.glob("evaluation-*")) == ["evaluation-test.en", "evaluation-test.en-2"]


def test_lines_break_nowhere(run_folder, tmp_path):
    translator = Translator(run_folder, device="cpu")
    evaluation = evaluate(translator, ["She sees\ntwo trees.", "x"], ["a\r\nb", "c\u2028d"], search_config(), "de")
    evaluation.save(tmp_path)
    for name in ("source", "reference", "hypothesis"):
        assert (tmp_path / f"{name}.txt").read_bytes().count(b"\n") == 2


def test_a_run_against_another(script, run_folder, files):
    result = evaluate_script(script, run_folder, f"against={run_folder}", *pair_of(files), "worst=0")
    assert result.returncode == 0, result.stderr
    assert "paired bootstrap" in result.stdout.decode()
    assert "p = 1.0000" in result.stdout.decode()


def test_runs_that_translate_together_against_one_of_them(script, run_folder, trained_folder, files, tmp_path):
    """They are scored as `run=[a,b]` translates, in a folder of their own."""
    first = shutil.copytree(trained_folder, tmp_path / "first", ignore=shutil.ignore_patterns("evaluation-*"))
    together = f"[{first},{run_folder}]"
    result = evaluate_script(script, together, f"against={first}", *pair_of(files), "worst=0")
    assert result.returncode == 0, result.stderr
    assert f"{first} + {run_folder} on test.en: 24 sentences" in result.stdout.decode()
    translated = script("translate", f"run={together}", *SHORT, stdin="\n".join(SOURCES).encode())
    own, alone = (
        (first / f"evaluation-test.en-{others}" / "hypothesis.txt").read_bytes()
        for others in (f"with-{run_folder.name}", "of-first"))
    assert own == translated.stdout != alone
    assert not (first / "evaluation-test.en").exists()


def test_comparison_and_limits_in_words(run_folder):
    translator = Translator(run_folder, device="cpu")
    short = evaluate(translator, SOURCES, REFERENCES, search_config(max_length=1), "de")
    long = evaluate(translator, SOURCES, REFERENCES, search_config(), "de")
    assert short.hit_limit > 0.5
    assert "BLEU" in describe_comparison(compare([("a", short), ("b", long)]))
    assert f"{100 * short.hit_limit:.1f} %" in describe(short)
    assert describe(long, worst=3).count("  reference  ") == 3
    with pytest.raises(UserError, match="no sentences"):
        evaluate(translator, [], [], search_config(), "de")


@pytest.mark.parametrize(("content", "words"), [
    (b"one\ntwo\n", ("24", "2")), (b"caf\xe9\n", ("test.bad:1", "UTF-8"))])
def test_files_that_do_not_fit_are_one_line(script, run_folder, files, content, words):
    (files / "test.bad").write_bytes(content)
    assert_user_error(evaluate_script(script, run_folder, *pair_of(files, "test.bad")), *words)


def with_data(run_folder: Path, copy: Path, **changes: object) -> Path:
    """A copy of the run that was trained on other data, with a cache that is here."""
    shutil.copytree(run_folder, copy)
    if "cache" in changes:
        Path(str(changes["cache"])).mkdir(exist_ok=True)
    config = RunFolder(copy).load_config()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
    (copy / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    return copy


def test_a_split_of_the_run_s_own_data(script, run_folder, tmp_path):
    train, test = write_pairs(tmp_path / "train.tsv", PAIRS[:60]), write_pairs(tmp_path / "test.tsv", PAIRS[60:80])
    run = with_data(run_folder, tmp_path / "run", path=None, train=str(train), validation=None, test=str(test),
                    cache=str(tmp_path / "cache"), holdout=5)
    result = evaluate_script(script, run)
    assert result.returncode == 0, result.stderr
    written = run / "evaluation-test"
    assert (written / "source.txt").read_text(encoding="utf-8").splitlines() == [source for source, _ in PAIRS[60:80]]
    assert (written / "reference.txt").read_text(encoding="utf-8").splitlines() == [target for _, target in PAIRS[60:80]]
    assert result.stdout.decode().splitlines()[-1].endswith(str(written))


@pytest.mark.parametrize("kind", ["missing", "files", "through a link"])
def test_a_run_does_not_choose_where_data_are_cached(run_folder, tmp_path, monkeypatch, kind):
    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    run = with_data(run_folder, tmp_path / "work" / "run", path=None, train=str(pairs))
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "notes.txt").touch()
    (run / "link").symlink_to(tmp_path / "home")
    place = {"missing": tmp_path / "new", "files": tmp_path / "home", "through a link": Path("run/link/new")}[kind]
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("cache: data/cache", f"cache: {place}"))
    before = sorted(tmp_path.rglob("*"))
    for ask in (lambda: held_out(RunFolder(run), "test", None), lambda: RunFolder(run).load_data()):
        with pytest.raises(UserError, match=rf"config.yaml: data.cache={place}: is no data cache"):
            ask()
    assert sorted(tmp_path.rglob("*")) == before
    (run / "config.yaml").write_text(config)  # data/cache, which is missing here
    assert len(held_out(RunFolder(run), "test", None)[0]) == len(PAIRS) // 10
    assert RunFolder(run).load_data().cache == "data/cache"  # now it is one


def test_a_direction_of_a_mix_is_scored_alone(run_folder, tmp_path):
    corpora = []
    for name, target in (("a", "de"), ("b", "fr"), ("c", "fr")):
        rows = [{"en": f"{source} {name}", target: text} for source, text in PAIRS[:30]]
        files = {"train": rows[:20]} if name == "a" else {"train": rows[:20], "test": rows[20:]}
        corpora.append({"name": name, "source": "en", "target": target} | {
            split: str(json_lines(tmp_path / f"{name}-{split}.jsonl", part)) for split, part in files.items()})
    run = with_data(run_folder, tmp_path / "run", path=None, train=None, source="en", target="de+fr", corpora=tuple(corpora),
                    validation=None, test=None, cache=str(tmp_path / "cache"))
    sources, references = held_out(RunFolder(run), "test", ("en", "fr"))
    assert sources == [f"{source} {name}" for name in "bc" for source, _ in PAIRS[20:30]]
    assert references == 2 * [target for _, target in PAIRS[20:30]]
    assert corpora_of_split(RunFolder(run), "test", ("en", "fr")) == {"b": range(10), "c": range(10, 20)}
    with pytest.raises(UserError, match="target=de: no corpus of this direction has a test split"):
        held_out(RunFolder(run), "test", ("en", "de"))
    with pytest.raises(UserError, match="cut from all directions together"):
        held_out(RunFolder(run), "validation", ("en", "de"))


@pytest.mark.parametrize("cut", [True, False])
def test_sentences_that_the_training_may_know_are_not_scored(script, run_folder, tmp_path, cut):
    train, test = write_pairs(tmp_path / "train.tsv", PAIRS[:60]), write_pairs(tmp_path / "test.tsv", PAIRS[60:80])
    run = with_data(run_folder, tmp_path / "run", path=None, train=str(train), validation=None, holdout=5,
                    test=None if cut else str(test), cache=str(tmp_path / "cache"))
    folder = RunFolder(run)
    data, tokenizer = folder.load_config().data, folder.load_config().tokenizer
    report = prepare(data, tokenizer, max_tokens=99, tokenizers=folder.load_tokenizers()).report
    folder.report_file.write_text(json.dumps(report))
    sources, references = held_out(folder, "test", None)
    assert len(sources) == len(references) == (5 if cut else 20)
    (train if cut else test).unlink()
    write_pairs(train if cut else test, PAIRS[20:80])
    assert_user_error(evaluate_script(script, run), "split=test", "have changed", "source_file=")
    assert len(held_out(folder, "train", None)[0]) > 0  # which shows the fit to what there is now


def test_a_rival_that_was_trained_on_these_sentences_is_told_of(script, run_folder, tmp_path, capsys):
    """Of the pairs of least hash one run holds out ten, the other four: it has learned from one of the five to be scored."""
    train = write_pairs(tmp_path / "train.tsv", PAIRS[:150])
    runs = []
    for holdout in (5, 2):
        run = with_data(run_folder, tmp_path / f"holding-{holdout}", path=None, train=str(train), validation=None, test=None,
                        holdout=holdout, cache=str(tmp_path / "cache"))
        config = RunFolder(run).load_config()
        corpus = prepare(config.data, config.tokenizer, max_tokens=99, tokenizers=RunFolder(run).load_tokenizers())
        RunFolder(run).report_file.write_text(json.dumps(corpus.report))
        runs.append(run)
    result = evaluate_script(script, runs[0], f"against={runs[1]}")
    assert f"warning: {runs[1]} was trained on 1 of these 5 sentences" in result.stderr.decode()
    assert "paired bootstrap" in result.stdout.decode()
    pairs = {run: held_out(RunFolder(run), "test", None) for run in runs}
    warn_of_unfair_scores(runs, runs[1], "test", *pairs[runs[1]])  # the first has held these out too
    assert not "".join(capsys.readouterr())
    train.unlink()
    warn_of_unfair_scores(runs, runs[0], "test", *pairs[runs[0]])
    assert "is unknown: " in "".join(capsys.readouterr())


def test_the_words_of_the_language_are_counted(script, run_folder, files, tmp_path):
    run = with_data(run_folder, tmp_path / "run", target="zh")
    result = evaluate_script(script, run, *pair_of(files))
    assert result.returncode == 0, result.stderr
    assert "tok:zh|" in result.stdout.decode()


def test_runs_of_other_languages_are_not_compared(script, run_folder, files, tmp_path):
    other = with_data(run_folder, tmp_path / "other", target="fr")
    assert_user_error(evaluate_script(script, run_folder, f"against={other}", *pair_of(files)), "en to de", "en to fr")


def test_a_model_without_words_scores_nothing(run_folder, monkeypatch):
    """A training that was too short ends with its scores, however low."""
    translator = Translator(run_folder, device="cpu")
    monkeypatch.setattr(translator.target_tokenizer, "decode", lambda ids: [""] * len(ids))
    evaluation = evaluate(translator, SOURCES[:3], REFERENCES[:3], search_config(max_length=3), "de")
    assert (evaluation.refused, evaluation.scores["bleu"].value) == (3, 0)


def test_a_source_that_is_refused_counts_as_an_empty_output(run_folder):
    evaluation = evaluate(
        Translator(run_folder, device="cpu"), [*SOURCES[:2], "word" * 99], REFERENCES[:3],
        search_config(max_length=5, max_source_tokens=50), "de")
    assert evaluation.refused == 1
    assert evaluation.hypotheses[2] == ""
    assert "not translated" in describe(evaluation)


def test_a_run_without_its_context_is_warned_of(run_folder, tmp_path, capsys):
    reader = with_data(run_folder, tmp_path / "reader", context=2)
    warn_of_unfair_scores([reader, run_folder], reader, "train", [], [])
    assert capsys.readouterr().err == ""
    warn_of_unfair_scores([reader, run_folder], run_folder, "train", [], [])
    assert f"warning: {reader} was trained with data.context=2, and these sentences have 0" in capsys.readouterr().err
