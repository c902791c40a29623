"""HTML and tags through a model: text translated as without tags, everything else kept."""

from __future__ import annotations

import dataclasses
import gzip
import re
from pathlib import Path

import pytest

from tests.support.commands import assert_user_error
from tests.support.configurations import search_config
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.runtime.errors import UserError

QUICK = search_config(beam_size=2, max_length_ratio=1, max_length_extra=5)
ROBUST = dataclasses.replace(QUICK, robust=True)
PAGE = """<!DOCTYPE html>
<title>She sees two houses.</title><style>p { color: red }</style>
<ul class="x">
  <li>He wants <b>three</b>
      trees.</li>
  <li>The <i>dog</i> paints many books.<br/>My brother finds <code>two &lt; 3</code> trees.
</ul>
<p translate="no">She sees.</p><table><tr><td>7</td><td>&nbsp;</td></tr></table>"""


@pytest.fixture(scope="module")
def translator(trained_folder: Path) -> Translator:
    return Translator(trained_folder, device="cpu")


def without_tags(text: str) -> str:
    return " ".join(re.sub("<[^<>]*>", "", text).split())


def test_a_document_keeps_all_but_its_texts(translator):
    translated = translator.translate_html(PAGE, QUICK)
    title, first, second = translator(
        ["She sees two houses.", "He wants three trees.", "The dog paints many books."], QUICK)
    assert f"<title>{title}</title><style>p {{ color: red }}</style>" in translated
    assert re.findall("<.*?>", translated) == re.findall("<.*?>", PAGE)
    assert "<code>two &lt; 3</code>" in translated
    assert translated.endswith(PAGE[PAGE.index('<p translate="no">') :])
    items = re.findall(r"<li>(.*?)(?:</li>|<br/>)", translated, re.DOTALL)
    assert list(map(without_tags, items)) == [first, second]


def test_the_tags_of_a_line_change_no_word(translator):
    plain = ["She sees two houses.", "He wants three trees. The dog paints many books."]
    tagged = ["<b>She</b> sees <x id='1'/>two <i>houses</i>.", "<p>He wants <b>three trees. The</b> dog paints</p> many books."]
    for options in (ROBUST, dataclasses.replace(ROBUST, split_sentences="always", n_best=2)):
        outputs = translator.translate(tagged, options)
        for source, output, expected in zip(tagged, outputs, translator.translate(plain, options), strict=True):
            assert list(map(without_tags, output.texts)) == list(expected.texts)
            assert all(sorted(re.findall("<.*?>", text)) == sorted(re.findall("<.*?>", source)) for text in output.texts)
            assert output.pairs == expected.pairs


def test_tags_of_lines_are_text_unless_robust(translator):
    tagged = "<b>She</b> sees two houses."
    assert translator.planner.plan(Request(tagged), QUICK)[0].text == tagged
    assert translator.planner.plan(Request(tagged), ROBUST)[0].text == "She sees two houses."
    assert translator(["<br/>", "a < b and c > d"], ROBUST)[0] == "<br/>"


def test_only_tags_within_a_sentence_cost_a_rating(translator, monkeypatch):
    rated = []

    def rate(pairs, search):
        rated.extend(pairs)
        return Translator.rate(translator, pairs, search)

    monkeypatch.setattr(translator, "rate", rate)
    translator.translate_html("<p>She sees.</p> <b>He wants <br> trees.</b>", QUICK)
    assert not rated
    translator.translate_html("<p>She <b>sees</b>.</p>", QUICK)
    assert len(rated) == 1


def test_a_refused_text_of_html_is_named(translator):
    with pytest.raises(UserError, match="'She sees.*search.max_source_tokens=3"):
        translator.translate_html("<p>She sees two houses", dataclasses.replace(QUICK, max_source_tokens=3))


def test_files_of_html_are_translated_whole(script, trained_folder, translator, tmp_path):
    source, output = tmp_path / "page.html", tmp_path / "page.de.html.gz"
    source.write_text(PAGE)
    result = script(
        "translate", f"run={trained_folder}", "device=cpu", f"input={source}", f"output={output}", "search.robust=false",
        "search.max_length_ratio=1", "search.max_length_extra=5")
    assert result.returncode == 0, result.stderr
    assert gzip.decompress(output.read_bytes()).decode() == translator.translate_html(PAGE)


def test_a_text_that_is_refused_stays_in_its_document(script, trained_folder):
    page = "<p>She sees " + "<b>ü</b>" * 30 + "</p>\n<p>He wants three trees.</p>\n"
    result = script(
        "translate", f"run={trained_folder}", "device=cpu", "input_format=html", "search.max_source_tokens=20",
        stdin=page.encode())
    assert result.returncode == 2
    first, second = result.stdout.decode().splitlines()
    assert first == page.splitlines()[0]
    assert second.startswith("<p>")
    assert "not translated" in result.stderr.decode()


def test_what_html_cannot_be_asked_for(script, trained_folder, tmp_path):
    (tmp_path / "page.html").write_bytes(b"<p>\xff")
    for options, words in (
            (["output_format=jsonl"], "output_format=jsonl: HTML becomes HTML"), (["search.n_best=2"], "search.n_best=2: "),
            (["details=true"], "details=true: needs jsonl"), ([], "not UTF-8 at byte 4")):
        assert_user_error(
            script("translate", f"run={trained_folder}", "device=cpu", f"input={tmp_path / 'page.html'}", *options), words)
    assert_user_error(script("translate", f"run={trained_folder}", "output_format=html"), "output_format=html: needs HTML")
