"""The table "as people write it": its rows change what they say, and count what comes through."""

from __future__ import annotations

import json
from random import Random
from types import SimpleNamespace

import pytest

from tests.support.configurations import search_config
from translator.evaluation.hallucination import measure_hallucination, repeats
from translator.evaluation.perturbations import (
    KEPT,
    SCORED,
    exclaimed,
    holds_link,
    holds_number,
    holds_once,
    mistyped,
    title,
    without_stop,
)
from translator.evaluation.robustness import evident_links, measure_robustness
from translator.inference.details import Details
from translator.inference.translation import Translation

SENTENCES = [
    f"Anna has {count} cats in {town}, and they sleep all day." for count in range(2, 12) for town in ("Paris", "Oslo")]
EAST = ["彼は三匹の猫と暮らしている。", "今日はとても暖かい。", "駅はどこですか。"] * 4


class Echo:
    """A translator whose output is what `answer` makes of a source; it aligns words of equal place."""

    source_tokenizer = SimpleNamespace(has_tags=False)

    def __init__(self, answer=str):
        self.answer = answer

    def stream(self, texts, search):
        return (Translation((self.answer(text),)) for text in texts)

    def details(self, sources, references, search):
        return [Details(alignment=tuple((i, i) for i in range(len(text.split())))) for text in references]


def table(sentences=SENTENCES, translator=None, language="de"):
    translator = translator or Echo()
    outputs = [translator.answer(text) for text in sentences]
    return measure_robustness(translator, sentences, sentences, outputs, search_config(), language)


def test_a_translator_that_keeps_all_reaches_what_is_possible():
    result = table()
    rows = {row.name: row for row in result.scored}
    assert len(rows) == len(SCORED) + 1
    assert rows["3 sentences a line"].count == len(SENTENCES) // 3
    for name, row in rows.items():
        assert row.possible == pytest.approx(100)
        assert (row.share == pytest.approx(1)) == (name != "typing errors"), name
    assert {row.value for rows in result.kept.values() for row in rows} == {100}
    assert (result.alignment.value, result.alignment.count) == (100, 3 * len(SENTENCES))  # name, number and town


def test_a_translator_that_drops_all_keeps_nothing():
    result = table(translator=Echo(lambda text: "Nichts davon."))
    assert {row.value for rows in result.kept.values() for row in rows} == {0}
    assert max(row.value for row in result.scored) < 5


def test_lost_capitals_cost_nothing_where_case_is_not_scored():
    rows = {row.name: row.share for row in table(translator=Echo(str.lower)).scored}
    assert rows["ALL CAPS, lower-cased"] == rows["lower case, lower-cased"] == 1


def test_the_table_is_the_same_each_time():
    assert table(translator=Echo(str.title)) == table(translator=Echo(str.title))


def test_a_script_without_case_has_no_rows_of_case():
    names = [row.name for row in table(EAST, language="ja").scored]
    assert not any(word in name for name in names for word in ("CAPS", "Case", "case"))
    assert {"plain", "without final stop", "2 sentences a line"} <= set(names)


def test_the_table_is_saved_as_json_and_text(tmp_path):
    result = table()
    result.save(tmp_path)
    saved = json.loads((tmp_path / "robustness.json").read_text())
    assert [row["name"] for row in saved["scored"]] == [row.name for row in result.scored]
    assert saved["kept"]["numbers"][0]["count"] == len(SENTENCES)
    assert (tmp_path / "robustness.txt").read_text() == f"{result}\n"


@pytest.mark.parametrize(("change", "before", "after"), [
    (title, "it isn't (over) yet", "It Isn't (Over) Yet"), (without_stop, "Ready?", "Ready"), (without_stop, "好了。", "好了"),
    (without_stop, "...", "..."), (exclaimed, "Stop that.", "Stop that!!!"), (exclaimed, "Really?", "Really?!!!")])
def test_changes_are_what_their_names_say(change, before, after):
    assert change(before, Random(0)) == after


def test_typing_errors_are_one_for_eight_words():
    text = " ".join(["wonderful"] * 80)
    changed = sum(word != "wonderful" for word in mistyped(text, Random(1)).split())
    assert 7 <= changed <= 11
    assert mistyped("a b", Random(1)) == "a b"


def test_kept_items_are_found_in_any_languages_form():
    assert all(holds_number(text, "1,234.50") for text in ("1.234,50 Euro", "1 234,50", "(1234.50)", "١٬٢٣٤٫٥٠"))
    assert not any(holds_number(text, "1,234.50") for text in ("1.234,5", "11.234,50", "1 und 234,50"))
    assert holds_once("to {a}.", "{a}")
    assert not holds_once("{a} {a}", "{a}")
    link = '<a href="x">'
    assert holds_link(f"Das {link}Haus</a>.", link)
    assert not any(holds_link(text, link) for text in (f"{link}</a>", f"{link}Haus", f"</a>Haus{link}", f"{link}A</a></a>"))


def test_items_are_in_their_sources_once():
    for rows in KEPT.values():
        for row in rows:
            for seed in range(20):
                item = row.item(Random(seed))
                assert row.holds(row.put("They sleep all day.", item, Random(seed)), item), row.name


def test_evident_links_are_names_and_numbers_on_both_sides():
    assert evident_links("In 2024 Anna saw Paris.", "Anna sah 2024 Paris.", set()) == [(2, 0), (1, 2), (4, 3)]
    assert evident_links("Was it so?", "Was ist so?", {"was"}) == []
    assert evident_links("Go to Bonn or Bonn", "Nach Bonn", set()) == []


def test_outputs_for_other_sources_are_aligned_to_nothing(tokenizer):
    pairs = [(f"She sees {n} {a}.", f"Sie sieht {n} {b}.") for n in range(10, 40)
             for a, b in (("houses", "Häuser"), ("trees", "Bäume"), ("books", "Bücher"))]
    sources, references = zip(*pairs, strict=True)
    same = measure_hallucination(sources, references, references, tokenizer, tokenizer)
    assert (same.unaligned, same.repeated, same.copied) == (0, 0, 0)
    swapped = measure_hallucination(sources, references[40:] + references[:40], references, tokenizer, tokenizer)
    assert swapped.unaligned > 0.1
    copied = measure_hallucination(sources, sources, references, tokenizer, tokenizer)
    assert copied.copied == 1
    stuck = measure_hallucination(sources, ["so so so"] * len(sources), references, tokenizer, tokenizer)
    assert stuck.repeated == 1


@pytest.mark.parametrize(("text", "expected"), [
    ("so so so haben", True), ("I said I know what I said I know", True), ("very very good", False), ("", False),
    ("One two three. One two four.", False)])
def test_repetition_is_a_long_ngram_or_a_word_in_a_row(text, expected):
    assert repeats(text) == expected
