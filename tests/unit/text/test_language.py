"""Languages of texts: sure of sentences, silent about names, numbers and code."""

from __future__ import annotations

import pytest

from translator.text import language
from translator.text.language import code_of, foreign, likeliest, name_of, rank_languages

FRENCH = "Demain matin, nous irons au marché avec nos voisins."
GERMAN = "Morgen früh gehen wir mit unseren Nachbarn auf den Markt."


@pytest.mark.parametrize(("text", "code"), [
    (FRENCH, "fr"), (GERMAN, "de"), ("Mañana iremos al mercado con los vecinos.", "es"), (FRENCH.upper(), "fr"),
    ("Zítra ráno půjdeme se sousedy na trh.", "cs"), ("غدا سنذهب إلى السوق مع جيراننا.", "ar"),
    ("明天我们和邻居一起去市场。", "zh")])
def test_a_sentence_of_another_language_is_foreign(text, code):
    assert likeliest(text) == code
    assert foreign(text, ("en",)) == code
    assert foreign(text, (code,)) == ""
    assert foreign(text, ("en", code)) == ""


@pytest.mark.parametrize("text", [
    "", " ", "Tom", "Dr. Müller, Zürich", "São Paulo", "Rio de Janeiro", "12 345,50", "https://example.com/index.html", "😀",
    "for (int i = 0; i < n; i++) sum += a[i];", "SELECT * FROM users WHERE id = 3;", "xkjqw zzpqr mnbvv",
    "Ludwig van Beethoven", "I love sushi and karaoke.", "The Eiffel Tower (la tour Eiffel) is in Paris.", "\ud83d", "\x00"])
def test_names_numbers_code_and_loan_words_are_not(text):
    assert foreign(text, ("en",)) == ""


def test_columns_that_name_no_language_are_not_checked():
    assert [code_of(name) for name in ("en", "EN", "en-US", "zh_Hans")] == ["en", "en", "en", "zh"]
    for column in ("english", "eng", "source", "src", "xx", "", "texte-fr"):
        assert code_of(column) == ""
        assert foreign(FRENCH, (column,)) == foreign(FRENCH, ("en", column)) == ""
    assert foreign(FRENCH, ()) == ""


def test_probabilities_sum_to_one_and_name_languages():
    ranked = rank_languages(FRENCH)
    assert next(iter(ranked)) == "fr"
    assert sum(ranked.values()) == pytest.approx(1, abs=1e-3)
    assert (name_of("fr"), name_of("1")) == ("French", "1")


def test_variants_of_a_language_are_not_foreign():
    assert foreign("聽日我哋同鄰居一齊去街市買嘢。", ("zh",)) == ""
    assert foreign("I morgon går vi på marknaden med naboane våre, og så går vi heim.", ("nb",)) == ""


def test_a_model_that_cannot_be_loaded_stops_nothing(monkeypatch, capfd):
    def fail() -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(language, "_identifiers", fail)
    language._codes.cache_clear()
    assert foreign(FRENCH, ("en",)) == foreign(GERMAN, ("en",)) == ""
    assert capfd.readouterr().err.count("the languages of texts are not checked: no space left on device") == 1
    language._codes.cache_clear()
