"""The page's figures are the evaluation's, it needs nothing from outside, and a run that lacks things gets one that says so."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from lxml import html
from PIL import Image

from tests.support.commands import assert_user_error
from tests.support.configurations import TINY, composed, run_config
from tests.support.corpora import PAIRS, write_pairs
from translator.config.building import by_dotted_name, from_hydra
from translator.config.commands import ReportConfig
from translator.evaluation.differences import mark_differences
from translator.evaluation.report import language_names, write_report
from translator.runs.run_folder import RunFolder
from translator.runs.tensorboard import read_history
from translator.runtime.atomic_files import load_tensors, save_tensors

SCRIPT = "<script>alert('&amp;')</script>"
HOSTILE = [(f"{SCRIPT} http://a.example/{number}", f"<b>Nein</b> {number}") for number in range(3)]
OTHER = "_second <i>$x^{$ 日"  # a run's name may look like anything
SHORT = ("device=cpu", "search.max_length=24", "search.beam_size=2")


@pytest.fixture(scope="module")
def run(script, tmp_path_factory) -> Path:
    """A run trained by the command line."""
    folder = tmp_path_factory.mktemp("reported")
    train, test = write_pairs(folder / "train.tsv", PAIRS[30:]), write_pairs(folder / "test.tsv", HOSTILE + PAIRS[:30])
    result = script(
        "train", *TINY, "name=first", f"runs={folder}", "data=files", f"data.train={train}", f"data.test={test}",
        "data.holdout=10", f"data.cache={folder / 'cache'}", "train.max_epochs=null", "train.max_minutes=null",
        "train.max_updates=120", "train.validate_every=40", "train.log_every=10", "train.batch_tokens=1000",
        "train.average=none", "train.label_smoothing=0", "model.d_model=64", "model.d_ff=128", "model.dropout=0",
        "optim.warmup_updates=20", *SHORT[1:])  # enough to learn: a BLEU of 0 has no interval
    assert result.returncode == 0, result.stderr
    return folder / "first"


@pytest.fixture(scope="module")
def other(run) -> Path:
    """A run of other weights and an option of its own."""
    path = shutil.copytree(run, run.with_name(OTHER))
    folder = RunFolder(path)
    save_tensors(folder.model_file, {
        name: weight + 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        for name, weight in load_tensors(folder.model_file).items()})
    text = folder.config_file.read_text().replace("lr: 0.0075", "lr: 0.0123")
    assert "0.0123" in text
    folder.config_file.write_text(text)
    return path


@pytest.fixture(scope="module")
def named(run) -> dict[str, object]:
    """What an evaluation on a test set by name leaves."""
    scores = {"test_set": "<wmt99>", "sentences": 1234, "confidence": {"BLEU": {"value": 31.5, "mean": 31, "interval": 2}}}
    (run / "evaluation-wmt99").mkdir()
    (run / "evaluation-wmt99" / "scores.json").write_text(json.dumps(scores))
    return scores


@pytest.fixture(scope="module")
def page(script, run, other, named) -> Path:
    result = script("report", f"run={run}", f"against='{other}'", *SHORT, "examples=3")
    assert result.returncode == 0, result.stderr
    assert b"Warning" not in result.stderr
    assert result.stdout.decode() == f"{run / 'report' / 'report.html'}\n"
    return run / "report" / "report.html"


def options(*overrides: str) -> ReportConfig:
    return from_hydra(ReportConfig, composed("report", *SHORT, *overrides))


def words(page: Path) -> str:
    """What a reader sees."""
    return " ".join(" ".join(html.parse(page).getroot().body.itertext()).split())


def test_figures_are_those_of_an_evaluation_and_of_sacrebleu(run, page):
    folder = run / "evaluation-test"  # which the training has left
    evaluated = json.loads((folder / "scores.json").read_text())
    command = [
        sys.executable, "-m", "sacrebleu", str(folder / "reference.txt"), "-i", str(folder / "hypothesis.txt"), "-m", "bleu",
        "chrf", "ter", "-w", "4", "--confidence"]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shown = words(page)
    for ours, expected in zip(evaluated["scores"].values(), theirs, strict=True):
        mean, interval = expected["confidence_mean"], expected["confidence_var"]
        low_high = re.search(rf"{re.escape(ours['signature'])} {ours['value']:.2f} ([\d.]+) to ([\d.]+)", shown)
        assert [*map(float, low_high.groups())] == pytest.approx([mean - interval, mean + interval], abs=0.01)
    assert f"{evaluated['scores']['bleu']['value']:.2f} BLEU on the 33 sentences of the test split" in shown


def test_test_sets_by_name_are_shown(page):
    assert "<wmt99> 1,234 BLEU 31.50 29.00 to 33.00" in words(page)


def test_the_page_is_whole_by_itself(page):
    content = page.read_text(encoding="utf-8")
    assert len(content) < 3_000_000
    tree = html.fromstring(content)
    assert not tree.xpath("//script | //link | //iframe | //object | //@onload")
    assert not re.search(r"url\(|@import", content)
    assert all(source.startswith("data:image/png;base64,") for source in tree.xpath("//@src"))
    assert not tree.xpath("//@href")
    assert all(tree.xpath("//img/@alt"))


def test_its_elements_are_closed(page):
    open_elements: list[str] = []

    class Nesting(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in {"meta", "img", "br"}:
                open_elements.append(tag)

        def handle_endtag(self, tag):
            assert open_elements.pop() == tag

    Nesting().feed(page.read_text(encoding="utf-8"))
    assert not open_elements


def test_pictures_stand_beside_it_too(page):
    inlined = {
        base64.b64decode(source.split(",")[1]) for source in html.parse(page).xpath("//img/@src")}
    files = sorted(page.parent.glob("*.png"))
    assert [file.name for file in files] == [
        "attention-1.png", "attention-2.png", "attention-3.png", "by-length.png", "curves.png"]
    assert {file.read_bytes() for file in files} == inlined
    for file in files:
        with Image.open(file) as picture:
            picture.load()
            assert picture.convert("RGB").getcolors(2**24)[1:]  # more than a blank sheet


def test_the_spans_of_heads_are_shown(run, page, tmp_path):
    assert "Attention spans" not in words(page)
    folder = RunFolder(shutil.copytree(run, tmp_path / "spans"))
    config = folder.load_config()
    model = dataclasses.replace(config.model, adaptive_span=12)
    folder.create(dataclasses.replace(config, model=model), folder.load_tokenizers(), folder.load_report())
    spans = {f"{side}.0.self_attention.span.s": torch.tensor([s, 1.5]) for side, s in (("encoder", -2.0), ("decoder", -1.0))}
    save_tensors(folder.model_file, folder.load_weights() | spans)
    shown = words(write_report(folder.path, tmp_path / "page", options("examples=0")))
    assert "Attention spans" in shown
    assert "layer head 1 head 2 encoder 1 1.4 9.8 decoder 1 3.2 9.8" in shown


def test_sentences_are_text_whatever_they_look_like(run, tmp_path):
    tables = html.parse(write_report(run, tmp_path, options("examples=33"))).xpath("//table[@class='sentence']")
    shown = {tuple(row[1].text_content() for row in table[:2]) for table in tables}
    assert shown == set(HOSTILE + PAIRS[:30])


def test_the_title_names_the_languages(page):
    tree = html.parse(page)
    assert tree.findtext(".//h1") == "English → German"
    assert tree.findtext(".//title") == "English → German: first"


@pytest.mark.parametrize(("option", "name"), [
    ("de", "German"), ("en+pt_BR", "English, Portuguese (Brazil)"), ("src", "src"), ("sentence", "sentence")])
def test_languages_are_named_if_they_are_codes(option, name):
    assert language_names(option) == name


def test_options_differ_from_defaults_or_are_left_out(run, other, page):
    rows = {row[0].text_content(): row for row in html.parse(page).xpath("(//*[@class='options'])[1]//tr[td]")}
    config, defaults = by_dotted_name(RunFolder(run).load_config()), by_dotted_name(run_config())
    differing = {name for name, value in config.items() if value != defaults[name]} - {"name"}
    assert set(rows) == differing | {"optim.lr"}
    assert [cell.text_content() for cell in rows["optim.lr"]] == ["optim.lr", "0.0075", "0.0123", str(defaults["optim.lr"])]
    assert [name for name, row in rows.items() if row.get("class")] == ["optim.lr"]


def test_typical_sentences_come_first_and_depend_on_the_seed(run, other, page, tmp_path):
    def typical(page: Path) -> str:
        return words(page).split(" Typical ")[1].split(" Best ")[0].split(" Better than ")[0]

    sources = re.findall(r"source (.*?) reference", typical(page))
    assert len(sources) == 3
    alike = typical(write_report(other, tmp_path / "other", options("examples=3")))  # of another model
    assert re.findall(r"source (.*?) reference", alike) == sources
    assert re.findall(r"source (.*?) reference", typical(
        write_report(run, tmp_path / "seed", options("examples=3", "seed=2")))) != sources


@pytest.mark.parametrize(("reason", "limits", "shown"), [
    ("train.max_updates=120 reached", {}, "ended at its limit of 120 updates (train.max_updates)"),
    ("the limit set in train.max_epochs, train.max_updates or train.max_minutes", {}, "ended at its limit of 120 updates"),
    ("the limit set in train.max_epochs", {"max_epochs": 1}, "ended with train.max_epochs=1 and train.max_updates=120 reached"),
    ("no better bleu in 10 validations", {}, "ended with no better bleu in 10 validations,")])
def test_the_limit_that_ended_training_is_named(run, tmp_path, reason, limits, shown):
    folder = RunFolder(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("model.safetensors")))
    config = folder.load_config()
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **limits))
    folder.create(config, folder.load_tokenizers(), folder.load_report())
    folder.save_outcome(folder.load_outcome() | {"reason": reason})
    assert shown in words(write_report(folder.path, tmp_path / "page", options()))


@pytest.mark.parametrize(("text", "other", "marked"), [
    ("Der Hund  bellt.", "Der Hund  bellt.", []), ("Ein Hund bellt laut!", "Der Hund bellt.", ["Ein", "laut!"]),
    ("A big red dog", "A dog", ["big red"]), ("日本語", "日本人", ["語"]), ("हिन्दी है", "हिन्द है", ["हिन्दी"]),
    ("word", "", ["word"]), ("", "word", [])])
def test_words_that_differ_are_marked(text, other, marked):
    parts = mark_differences(text, other)
    assert "".join(part for part, _ in parts) == text
    assert [part for part, differs in parts if differs] == marked


def test_a_printed_page_has_no_empty_half(page, tmp_path):
    from tests.support.browser import Browser  # which skips where there is no Chromium

    browser = Browser(tmp_path)
    try:
        browser.driver.get(page.as_uri())
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": 680, "height": 1000, "deviceScaleFactor": 1, "mobile": False})  # A4 at 96 dpi without its margins
        tallest = browser.driver.execute_script(
            "return Math.max(...[...document.querySelectorAll('.sentence, .cards, figure, tr, img')].map(e => e.offsetHeight))")
        assert tallest < 1000 / 2  # of what must not break across pages
    finally:
        browser.driver.quit()


def test_the_other_run_is_compared(page):
    shown = words(page)
    assert f"against {OTHER} (p = " in shown
    name = re.escape(OTHER)
    better, worse = re.findall(rf"(?:Better|Worse) than {name}(.*?)(?=Worse than| Best )", shown)
    for part, sign in ((better, 1), (worse, -1)):
        pairs = re.findall(rf" first .*? (\d+\.\d) {name} .*? (\d+\.\d)", part)
        gains = [sign * (float(own) - float(others)) for own, others in pairs]
        assert gains == sorted(gains, reverse=True)
        assert all(gain >= 0 for gain in gains)
        assert len(gains) <= 3
        assert gains or "None." in part


LACKS = {
    "metrics.jsonl": "there are no curves", "data_report.json": "data_report.json is missing", "outcome.json": "has not ended",
    "checkpoints": "no checkpoint tells", "model.safetensors": "Not evaluated:"}


@pytest.mark.parametrize("lacking", [*([name] for name in LACKS), list(LACKS)], ids=lambda lacking: "+".join(lacking))
def test_what_a_run_lacks_is_said(run, tmp_path, lacking):
    copy = shutil.copytree(run, tmp_path / "run")
    for name in lacking:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shown = words(write_report(copy, tmp_path / "page", options()))
    for name, said in LACKS.items():
        assert (said in shown) == (name in lacking), name


def test_a_page_without_data_or_without_the_other_s_weights(run, other, tmp_path):
    copy = shutil.copytree(other, tmp_path / "run")
    (copy / "model.safetensors").unlink()
    shown = words(write_report(run, tmp_path / "page", options(f"against={copy}")))
    assert "run was not evaluated:" in shown
    assert "BLEU on the 33 sentences of the test split." in shown
    config = RunFolder(run).load_config()
    (copy / "config.yaml").write_text((run / "config.yaml").read_text().replace(str(config.data.test), "/nowhere.tsv"))
    shutil.copy(run / "model.safetensors", copy)
    assert "/nowhere.tsv" in words(write_report(copy, tmp_path / "page", options()))


def test_damaged_measurements_are_counted(run, tmp_path):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    damaged = ["{", "[3]", '{"update": "x"}', '{"train/loss": 1}', '{"update": 1e999, "a":']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines + damaged))
    history, unreadable = read_history(tmp_path / "metrics.jsonl")
    assert unreadable == len(damaged)
    measured = [json.loads(line) for line in lines]
    recorded = [(line["update"], line["train/loss"]) for line in measured if "train/loss" in line]
    assert history["train/loss"] == recorded
    assert len(recorded) == 12
    assert read_history(tmp_path / "none") == ({}, 0)


@pytest.mark.parametrize("report", [
    "[]", '{"splits": []}', '{"splits": {"train": 3}}', '{"splits": {"train": {"read": 1, "kept": "x", "dropped": {}}}}'])
def test_a_data_report_of_another_form_is_no_crash(run, tmp_path, report):
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("model.safetensors"))
    (copy / "data_report.json").write_text(report)
    assert LACKS["data_report.json"] in words(write_report(copy, tmp_path / "page", options()))


def test_a_mistake_is_one_line(script, run, tmp_path):
    (tmp_path / "file").touch()
    assert_user_error(script("report", f"run={run}", f"output={tmp_path / 'file'}", *SHORT), "file")
    page = tmp_path / "page" / "report.html"
    page.parent.mkdir()
    page.write_text("of before")
    assert_user_error(
        script("report", f"run={run}", f"output={page.parent}", *SHORT, "search.terminology=/nowhere"), "search.terminology")
    assert page.read_text() == "of before"


def test_the_page_fits_a_narrow_screen(page, tmp_path):
    from tests.support.browser import Browser  # which skips where there is no Chromium

    browser = Browser(tmp_path)
    try:
        for width in (320, 375, 1280):
            browser.driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 1000})
            browser.driver.get(page.as_uri())
            takes, there_is = browser.wide()
            assert takes <= there_is == width
    finally:
        browser.driver.quit()
