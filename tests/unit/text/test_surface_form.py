"""What stands around a sentence, typographic marks and capitals are set aside for the model, and given back."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import tokenizer_config
from translator.text.placeholders import find_spans
from translator.text.surface_form import INVISIBLE, SurfaceForm, SurfaceForms
from translator.text.tokenizer import train_tokenizer

SENTENCES = [
    "I like tea.", "She likes the old man.", "Tom and I drink tea in London.", "NASA is not the only one.",
    "He said \"yes\", not no.",
    "It's late - go home!", "Where is the sea?", "the tea is hot", "Good morning: it is hot."]
GERMAN = ["Ich mag Tee.", "Sie mag den alten Mann.", "Tom und ich trinken Tee in London.", "Guten Morgen", "Es ist spät!"]
WORDS = tokenizer_config(placeholders=9, vocab_size=600, model_type="bpe")  # most words are pieces
ENGLISH, TARGET = train_tokenizer(SENTENCES * 20, WORDS), train_tokenizer(GERMAN * 20, WORDS)
FORMS = SurfaceForms(ENGLISH, TARGET)
MARKS = ["“{}”", "„{}“", "« {} »", "'{}'", "({})", "[{}]", "- {}", "• {}", "* {}", "1. {}", "a) {}", "(2) {}",
         "Tom: {}", "TOM: {}", "{} 😀", "😀 {}", "{} :-)", "> {}", "1. “{}” ❤️", "「{}」"]
RUNS = ["!!!", "??", "?!", "......", "!!! 😀"]
TEXT = st.text(max_size=30) | st.lists(
    st.sampled_from(["I like tea", "THE SEA", "Tom: ", "- ", "“", "”", "\"", "'", "(", ")", "!", "?!", ". ", " ", "😀", "%s",
                     "a@b.de", "⟦1⟧", "–", "ß", "ŉ", "İ", "привет", "1,000", "\n", "東京"]), max_size=8).map("".join)


@pytest.mark.parametrize("marked", MARKS)
def test_marks_around_a_sentence_are_set_aside_and_given_back(marked):
    form = FORMS.of(marked.format("I like tea."))
    assert form.text == "I like tea."
    assert form.restore("Ich mag Tee.") == marked.format("Ich mag Tee.")


@pytest.mark.parametrize("run", RUNS)
def test_a_run_of_marks_is_one_mark_for_the_model(run):
    form = FORMS.of(f"I like tea{run}")
    assert form.text in ("I like tea!", "I like tea?", "I like tea...")
    assert form.restore("Ich mag Tee!") == form.restore("Ich mag Tee") == f"Ich mag Tee{run}"


def test_invisible_characters_do_not_reach_the_model():
    form = FORMS.of("I li\u00adke \u2068tea\u2069.")
    assert (form.text, form.restore("Ich mag Tee.")) == ("I like tea.", "Ich mag Tee.")
    assert "".join(form.source_parts(["I like", " tea."])) == "I li\u00adke \u2068tea\u2069."


def test_long_runs_of_space_take_linear_time():
    start = time.perf_counter()
    FORMS.of("I like" + " " * 200_000 + "tea.")
    assert time.perf_counter() - start < 5  # quadratic time would be minutes


def test_a_mark_behind_the_closing_quote_is_one_of_the_sentence():
    form = FORMS.of("“I like tea”.")
    assert (form.text, form.restore("Ich mag Tee.")) == ("I like tea.", "“Ich mag Tee”.")


@pytest.mark.parametrize("sentence", [*SENTENCES, "\"No\" is not \"yes\".", "Tom and NASA",
                                      "The sea: I like tea.", "Tom drinks tea: I go home.", "NASA", "'She' is not 'no'."])
def test_ordinary_sentences_reach_the_model_unchanged(sentence):
    form = FORMS.of(sentence)
    assert form == SurfaceForm(sentence, sentence)
    assert form.restore("Any “text” - so!") == "Any “text” - so!"


@pytest.mark.parametrize(("text", "masked"), [
    ("I like Zürich.", "I like ⟦1⟧."), ("Tom and Jean-Luc's tea", "Tom and ⟦1⟧'s tea"),
    ("I like Tom, Ishmael.", "I like Tom, ⟦1⟧."),
    ("Zürich is old.", "Zürich is old."), ("I don't like I'm-so-old.", "I don't like I'm-so-old."), ("I like ŻÓŁĆ tea", None)])
def test_rare_names_are_masked_where_capitals_show_them(text, masked):
    letters = train_tokenizer([*SENTENCES * 20, " ".join("ZürichJean-LucIshmaelŻÓŁĆI'm-so-old")], WORDS)
    forms = SurfaceForms(letters, TARGET, names_have_capitals=True)
    form = forms.of(text)
    assert form.text == (text if masked is None else masked)
    assert form.restore(form.text) == text
    assert SurfaceForms(letters, TARGET).of(text).text == text


@pytest.mark.parametrize(("written", "text", "output", "restored"), [
    ("GOOD MORNING", "Good morning", "Guten Morgen", "GUTEN MORGEN"),
    ("TOM LIKES THE OLD MAN!!!", "Tom likes the old man!", "Tom mag den Mann!", "TOM MAG DEN MANN!!!"),
    ("NASA IS NOT THE SEA.", "NASA is not the sea.", "Die NASA ist groß.", "DIE NASA IST GROSS."),
    ("TEA", "Tea", "Tee", "TEE"),
    ("The Old Man And The Sea", "The old man and the sea", "Der alte Mann", "Der alte Mann"),
    ("He said “yes”.", "He said \"yes\".", "Er sagte \"ja\".", "Er sagte “ja”."),
    ("It’s late – go home!", "It's late - go home!", "Los - geh's!", "Los – geh’s!")])
def test_capitals_and_typography_are_the_models_and_come_back(written, text, output, restored):
    form = FORMS.of(written)
    assert form.text == text
    assert form.restore(output) == restored


def test_parts_to_keep_are_placeholders_of_the_model():
    form = FORMS.of("- SEE http://x.org/Ab AND ASK me@x.org, TOM 😀!")
    assert form.text == "See ⟦1⟧ and ask ⟦2⟧, Tom ⟦3⟧!"
    assert form.restore("⟦3⟧ ⟦2⟧, siehe ⟦1⟧!") == "- 😀 me@x.org, SIEHE http://x.org/Ab!"


def test_words_of_unknown_characters_are_kept_unless_most_are():
    assert FORMS.of("Tom likes привет a lot in London.").values == ("привет",)
    assert FORMS.of("привет Tom привет").values == ()
    assert FORMS.of("The sea is 東 and not hot").values == ("東",)


@pytest.mark.parametrize("text", ["https://example.org 😀", "12.50", "!?", " ⟦1⟧ ", "- 5"])
def test_a_text_without_words_is_kept_as_written(text):
    form = FORMS.of(text)
    assert (form.text, form.restore("")) == ("", text.strip())


def bare(text: str) -> str:
    return "".join(filter(str.isalnum, text.upper().casefold()))


@given(TEXT)
def test_nothing_is_lost_between_setting_aside_and_giving_back(text):
    form = FORMS.of(text)
    text, restored = INVISIBLE.sub("", text), form.restore(form.text)
    assert bare(restored) == bare(text)
    for start, end in find_spans(text)[:9]:
        assert text[start:end] in restored
    assert len(restored) >= len(text.strip()) - restored.count("SS")


@given(TEXT)
def test_parts_of_the_models_text_are_parts_of_the_sentence(text):
    form = FORMS.of(text)
    if not form.text:
        return
    assert "".join(form.source_parts(ENGLISH.spans(form.text))) == text
    pieces = ENGLISH.surfaces(ENGLISH.encode([form.text])[0][:-1])
    if "".join(pieces) == form.text:
        assert "".join(form.restore_parts(pieces)) == form.restore(form.text)


def test_words_are_numbered_as_the_reader_sees_them():
    form = FORMS.of("- “Call {{ user }} at 10 000 now” 😀")
    assert form.text == "Call ⟦1⟧ at ⟦2⟧ now"
    output = "⟦2⟧ jetzt ⟦1⟧"
    links, words, output_words = form.renumbered([(3, 0), (4, 1), (1, 2)], output)
    sentence, translation = form.source.split(), form.restore(output).split()
    assert (words, output_words) == (len(sentence), len(translation))
    assert [(sentence[s], translation[t]) for s, t in links] == [
        ("-", "-"), ("10", "“10"), ("000", "000"), ("now”", "jetzt"), ("{{", "{{"), ("user", "user"), ("}}", "}}”"),
        ("😀", "😀")]


@pytest.mark.parametrize("written", ["- I like tea!!!", "“Write to a@b.de, Tom.”", "GOOD MORNING 😀", "I like tea."])
def test_an_output_is_found_back_from_a_translation(written):
    form = FORMS.of(written)
    output = form.model_output(form.restore(form.text))
    assert output is not None
    assert form.restore(output) == form.restore(form.text)
    assert form.is_plain or form.model_output("nothing of it") is None
