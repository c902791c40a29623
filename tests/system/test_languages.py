"""One model of several languages: every direction is read, tagged, held out alike, learned and scored."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Script, assert_user_error
from tests.support.configurations import TINY, composed, run_config, search_config, tokenizer_config
from tests.support.corpora import PAIRS, data_config, json_lines, pairs_of, prepared_corpus
from translator.config.building import from_hydra
from translator.config.commands import EvaluateConfig, ReportConfig
from translator.config.languages import split_tag, tag_of
from translator.data.preparation import prepare
from translator.data.sources import read, windows
from translator.evaluation.held_out import held_out, require_comparable
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

# A third language: English in capitals.
LANGUAGES = ("en", "de", "up")
ROWS: list[dict[str, Any]] = [{"en": s, "de": t, "up": s.upper()} for s, t in PAIRS]
ALL = {"source": "en+de+up", "target": "en+de+up"}


def directions(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(tag_of(t) + row[s], row[t]) for row in rows for s in LANGUAGES for t in LANGUAGES if s != t]


def nested(path: Path, rows: list[dict[str, Any]]) -> Path:
    return json_lines(path, [{"translation": row} for row in rows])


@pytest.mark.parametrize("write", [json_lines, nested])
def test_every_row_is_read_in_all_directions(tmp_path, write):
    train = write(tmp_path / "train.jsonl", ROWS)
    assert pairs_of(read(data_config(tmp_path, train=str(train), **ALL), "train")) == directions(ROWS)
    streamed = data_config(tmp_path, train=str(train), validation=str(train), test=str(train), window=50, **ALL)
    assert pairs_of(next(windows(streamed))) == directions(ROWS[:50])


def test_many_to_one_needs_no_tags(tmp_path):
    train = json_lines(tmp_path / "train.jsonl", ROWS)
    pairs = pairs_of(read(data_config(tmp_path, train=str(train), source="en+up", target="de"), "train"))
    assert pairs == [(row[language], row["de"]) for row in ROWS for language in ("en", "up")]


def test_a_language_left_out_of_its_own_pair_leaves_no_choice(tmp_path):
    train = json_lines(tmp_path / "train.jsonl", ROWS)
    one = data_config(tmp_path, train=str(train), source="en", target="en+de")
    assert (one.directions, one.tags) == ((("en", "de"),), ())
    assert pairs_of(read(one, "train")) == [(row["en"], row["de"]) for row in ROWS]


@pytest.mark.parametrize(("lacking", "cause"), [
    (None, "missing or not text"), ("", "empty"), (" ", "empty"), ("\u200b", "empty")])
def test_a_language_that_a_row_lacks_is_counted_not_spelled(tmp_path, lacking, cause):
    rows = [*ROWS, {"en": "A bird.", "de": lacking, "up": "A BIRD."}]
    report = prepared_corpus(tmp_path, train=str(json_lines(tmp_path / "train.jsonl", rows)), **ALL).report["splits"]["train"]
    assert report["dropped"][cause] == 4
    assert not any("None" in str(example) for example in report["examples"][cause][0][:1])


@pytest.mark.parametrize("given", [True, False])
def test_no_sentence_crosses_from_train_in_any_direction(tmp_path, given):
    held = {"test": str(json_lines(tmp_path / "test.jsonl", ROWS[:20]))} if given else {}
    corpus = prepared_corpus(tmp_path, train=str(json_lines(tmp_path / "train.jsonl", ROWS)), **held, **ALL)
    trained = {split_tag(text)[1] for pair in pairs_of(corpus.train) for text in pair}
    for rows in (corpus.validation, corpus.test):
        assert len(rows)
        assert not trained & {split_tag(text)[1] for pair in pairs_of(rows) for text in pair}
    counts = Counter(split_tag(source)[0] for source, _ in pairs_of(corpus.train))
    assert set(counts) == set(map(tag_of, LANGUAGES))


@pytest.mark.parametrize("joint", [True, False])
def test_a_tag_is_one_piece(tmp_path, joint):
    data = data_config(tmp_path, train=str(json_lines(tmp_path / "train.jsonl", ROWS)), **ALL)
    tokenizer = prepare(data, tokenizer_config(joint=joint), max_tokens=100).source_tokenizer
    assert tokenizer.tags == (">>en<<", ">>de<<", ">>up<<")
    [ids] = tokenizer.encode([tag_of("de") + "She sees two houses."])
    assert tokenizer.pieces(ids)[:2] == ["▁", ">>de<<"]


@pytest.mark.parametrize(("options", "words"), [
    (["data.source=en+en"], "data.source"), (["data.target=simple en+de"], "data.target"),
    (["data.source=en+", "data.target=de"], "data.source"),
    (["data.source=de", "data.target=de"], "data.source"),
    (["data.source=en+de", "data.target=en+de", "data.path=null", "data.train=[a.en,a.de]"], "files of lines"),
])
def test_mistaken_languages_are_named(options, words):
    with pytest.raises(UserError, match=words):
        run_config(*options)


@pytest.fixture(scope="module")
def several(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned three languages."""
    folder = tmp_path_factory.mktemp("several")
    train, test = json_lines(folder / "train.jsonl", ROWS), json_lines(folder / "test.jsonl", [ROWS[0]])
    result = script(
        "train", "data=files", f"data.train={train}", f"data.validation={test}", f"data.test={test}",
        "data.source=en+de+up", "data.target=en+de+up",
        f"data.cache={folder / 'cache'}", f"runs={folder}", "name=several", *TINY, "model.d_model=64", "model.d_ff=128",
        "model.dropout=0", "tokenizer.vocab_size=90", "tokenizer.byte_fallback=false", "train.label_smoothing=0",
        "train.max_epochs=null", "train.max_minutes=null", "train.max_updates=300", "train.validate_every=300",
        "train.average=none", "train.batch_tokens=1024", "optim.warmup_updates=20", timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    return folder / "several"


def test_the_tag_decides_the_language(several):
    translator = Translator(several)
    rows = ROWS[40:80]
    for language in LANGUAGES:
        others = [row[other] for row in rows for other in LANGUAGES if other != language]
        wanted = [row[language] for row in rows for other in LANGUAGES if other != language]
        by_option = translator(others, search_config(language=language))
        assert by_option == translator([tag_of(language) + text for text in others], search_config())
        assert by_option == translator([f">>{language}<<{text}" for text in others], search_config())  # without a space
        right = sum(a == b for a, b in zip(by_option, wanted, strict=True))
        assert right > 0.8 * len(wanted), f"{language}: {right} of {len(wanted)}"


def test_each_sentence_of_a_long_text_keeps_the_tag(several):
    translator = Translator(several)
    texts = [row["en"] for row in ROWS[40:60]]
    [translation] = translator.translate([tag_of("up") + " ".join(texts)])
    assert translation.sentences == len(texts)
    assert translation.text == " ".join(translator([tag_of("up") + text for text in texts]))
    [invisible] = translator.translate([tag_of("up") + " ".join([*texts, "\u200b"])])
    assert invisible.text == f"{translation.text} \u200b"  # nothing is made up for a sentence of nothing


def test_missing_or_unknown_language_is_refused(several, trained_folder):
    translator = Translator(several)
    for text in ("She sees two houses.", ">>fr<< She sees two houses."):
        assert ">>de<<" in translator.translate([text])[0].refused
    for empty in translator.translate([">>de<< ", "", ">>de<< \u200b"]):  # the last is a space without width
        assert (empty.refused, empty.text.strip("\u200b")) == ("", "")
    assert "one of" in translator.translate(["A."], search_config(language="fr"))[0].refused
    assert "search.language" in Translator(trained_folder).translate(["A."], search_config(language="de"))[0].refused


def test_terms_that_the_vocabulary_lacks_are_refused_by_line(several, tmp_path):
    (tmp_path / "terms.tsv").write_text("houses\t東京\n", encoding="utf-8")
    refused, fine = Translator(several).translate(
        [">>de<< She sees two houses.", ">>de<< She sees two trees."], search_config(terminology=str(tmp_path / "terms.tsv")))
    assert "'東京' holds characters that the vocabulary lacks" in refused.refused
    assert fine.hypotheses


def test_details_see_the_tag_too(several):
    translator = Translator(several)
    [with_option] = translator.details(["She sees two houses."], ["Sie sieht zwei Häuser."], search_config(language="de"))
    [with_tag] = translator.details([">>de<< She sees two houses."], ["Sie sieht zwei Häuser."])
    assert with_option == with_tag


def test_fine_tuning_keeps_to_the_languages_of_the_vocabulary(several, script, tmp_path):
    train = json_lines(tmp_path / "train.jsonl", ROWS)
    result = script(
        "train", "data=files", f"data.train={train}", f"data.cache={tmp_path}", f"runs={tmp_path}", "name=next",
        f"init={several}", "data.target=de")
    assert_user_error(result, "data.target=de", ">>de<<", "joined by +")


def test_nothing_but_refusals_is_no_evaluation(several, script, tmp_path):
    file = tmp_path / "untagged"
    file.write_text("She sees two houses.\n")
    result = script("evaluate", f"run={several}", f"source_file={file}", f"reference_file={file}")
    assert_user_error(result, "no source could be translated", ">>de<<")


@pytest.fixture(scope="module")
def single(script: Script, several: Path) -> Path:
    """A run of one of their directions, on the same data."""
    folder = several.parent
    result = script(
        "train", "data=files", f"data.train={folder / 'train.jsonl'}", f"data.validation={folder / 'test.jsonl'}",
        f"data.test={folder / 'test.jsonl'}", "data.source=en", "data.target=up", f"data.cache={folder / 'cache'}",
        f"runs={folder}", "name=single", *TINY, "train.max_updates=2", "train.validate_every=2")
    assert result.returncode == 0, result.stderr.decode()
    return folder / "single"


def test_a_direction_is_scored_alone(several, single, script):
    result = script("evaluate", f"run={several}", "source=en", "target=up", f"against={single}", "device=cpu")
    assert result.returncode == 0, result.stderr.decode()
    assert b"paired bootstrap" in result.stdout
    for of, tag in ("", tag_of("up")), ("-of-single", ""):
        folder = several / f"evaluation-test-en-up{of}"
        assert (folder / "source.txt").read_text() == f"{tag}{ROWS[0]['en']}\n"
        assert (folder / "reference.txt").read_text() == f"{ROWS[0]['up']}\n"
    assert not (single / "evaluation-test-en-up").exists()
    assert_user_error(script("evaluate", f"run={several}", "source=en", "target=fr"), "source=en target=fr", "en to de")
    of_train = script("evaluate", f"run={several}", "split=train", "source=en", "target=up")
    assert_user_error(of_train, "split=train", "Remove source=")
    changed = json_lines(several.parent / "changed.jsonl", ROWS[3:4])
    run = several.parent / "of-changed-data"
    shutil.copytree(several, run)
    config_file = RunFolder(run).config_file
    config_file.write_text(config_file.read_text().replace(str(several.parent / "test.jsonl"), str(changed)))
    for direction in (None, ("en", "up")):
        with pytest.raises(UserError, match="have changed"):
            held_out(RunFolder(run), "test", direction)
    folder = RunFolder(single)
    assert held_out(folder, "train", ("en", "up")) == held_out(folder, "train", None)


def test_runs_are_compared_in_what_both_translate(several, single):
    require_comparable([single, several], ("en", "up"))
    with pytest.raises(UserError, match=f"source=en target=de: the model in {single} translates en to up"):
        require_comparable([single, several], ("en", "de"))
    with pytest.raises(UserError, match=r"nothing to compare\. .* source= and target="):
        require_comparable([single, several], None)
    for command, kind in (("evaluate", EvaluateConfig), ("report", ReportConfig)):
        with pytest.raises(UserError, match="source: and target go together"):
            from_hydra(kind, composed(command, "source=en"))


def test_report_of_one_direction_compares_with_bilingual_run(several, single, script, tmp_path):
    result = script(
        "report", f"run={several}", "source=en", "target=up", f"against={single}", f"output={tmp_path}", "device=cpu",
        "search.max_length=9")
    assert result.returncode == 0, result.stderr.decode()
    page = (tmp_path / "report.html").read_text()
    assert "<h1>English → up</h1>" in page
    assert ROWS[0]["up"] in re.sub("<[^>]*>", "", page)  # words may be marked
