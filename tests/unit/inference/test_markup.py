"""Tags set again in a translation: each once, well nested, around the words that are aligned to theirs."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translator.inference.markup import set_tags
from translator.inference.projection import WORD, WordAlignment
from translator.text.html import parse_html
from translator.text.markup import TAG, Markup, strip_tags


def words_of(text: str) -> list[str]:
    return [match[0] for match in WORD.finditer(text)]


def copied(markup: Markup) -> str:
    """The text as its own translation, each word aligned to itself."""
    words = words_of(markup.text)
    return set_tags(markup, markup.text, WordAlignment(words, words, [(i, i) for i in range(len(words))]))


# Trees of elements. A word may go on beyond a tag.
TEXT = st.sampled_from(["tea", "Tom", " ", "  ", " a ", "-", ",", ". ", "drinks", "東京", "é"])
POINT = st.sampled_from(["<br/>", "<img src='x'>", "<x id=\"1\"/>"])
CONTENT = st.recursive(
    TEXT | POINT, lambda inner: st.tuples(st.sampled_from("abiu"), st.lists(inner, max_size=4)).map(
        lambda element: f"<{element[0]}>{''.join(element[1])}</{element[0]}>"), max_leaves=12)
TREES = st.lists(CONTENT, max_size=6).map("".join)


@settings(max_examples=60)
@given(TREES)
def test_a_copy_has_its_tags_where_they_were(text):
    markup = strip_tags(text)
    assert markup is None or copied(markup) == text


@settings(max_examples=60)
@given(TREES)
def test_html_translated_to_itself_comes_back(html):
    document = parse_html(f"<p>{html}</p>")
    assert document.join([copied(markup) for markup in document.texts]) == f"<p>{html}</p>"


def assert_well_nested(text: str) -> None:
    opened = []
    for match in TAG.finditer(text):
        if match["close"]:
            assert opened.pop() == match["name"]
        elif not match["alone"] and match["name"] != "img":
            opened.append(match["name"])
    assert not opened


@settings(max_examples=60)
@given(st.data())
def test_any_alignment_keeps_tags_once_and_well_nested(data):
    source = data.draw(TREES)
    markup = strip_tags(source)
    if markup is None:
        return
    places = sorted(data.draw(st.sets(st.integers(0, len(markup.text)), max_size=2)))
    parts = [markup.text[a:b] for a, b in zip([0, *places], [*places, len(markup.text)], strict=True)]
    outputs, translated = [], []
    for part in markup.split(parts):
        target = " ".join(data.draw(st.lists(st.sampled_from(["Tee,", "Tom", "trinkt", "(", "東京", "tea"]), max_size=8)))
        numbers = st.tuples(st.integers(0, 9), st.integers(0, 9))
        alignment = WordAlignment(words_of(part.text), target.split(), data.draw(st.lists(numbers, max_size=12)))
        outputs.append(set_tags(part, target, alignment))
        translated.append(target)
    output = "".join(outputs)
    tags = [Counter(match[0] for match in TAG.finditer(text)) for text in (source, output)]
    assert tags[0] == tags[1]
    assert_well_nested(output)
    assert TAG.sub("", output).split() == "".join(translated).split() or "".join(TAG.sub("", output).split()) == "".join(
        "".join(translated).split())


@given(st.text("<>/abi tea", max_size=40), st.text("xy ", max_size=12), st.lists(st.tuples(*[st.integers(0, 5)] * 2)))
def test_crossing_and_stray_tags_are_kept_too(text, target, links):
    markup = strip_tags(text)
    if markup is not None:
        output = set_tags(markup, target, WordAlignment(words_of(markup.text), target.split(), links))
        assert Counter(re.findall(TAG.pattern, output)) == Counter(re.findall(TAG.pattern, text))


@pytest.mark.parametrize(("source", "target", "links", "expected"), [
    ("Click <b>here</b> now.", "Jetzt hier klicken.", [(2, 0), (1, 1), (0, 2)], "Jetzt <b>hier</b> klicken."),
    ("<i>I</i> see <b>him.</b>", "Ihn sehe ich.", [(2, 0), (1, 1), (0, 2)], "<b>Ihn</b> sehe <i>ich</i>."),
    ("a <b>red <i>old</i></b> car", "ein altes rotes Auto", [(0, 0), (2, 1), (1, 2), (3, 3)],
     "ein <b><i>altes</i> rotes</b> Auto"),
    ("I <b>stand up</b> now", "Ich stehe jetzt auf", [(0, 0), (1, 1), (3, 2), (2, 3)], "Ich <b>stehe jetzt auf</b>"),
    ("I <b>stand</b> <i>now</i> <b>up</b>", "Ich stehe jetzt auf", [(0, 0), (1, 1), (2, 2), (3, 3)],
     "Ich <b>stehe</b> <i>jetzt</i> <b>auf</b>"),
    ("an <b>odd</b> one", "etwas Seltsames", [(0, 0), (2, 0), (1, 1)], "etwas <b>Seltsames</b>"),
    ("read <a href='x'>this</a>", "lesen Sie", [(0, 0), (0, 1)], "lesen <a href='x'>Sie</a>"),
    ("I know <x id=1/>.", "das weiß ich", [(0, 2), (1, 1)], "das weiß <x id=1/> ich"),
    ("press <x id=1/>+<x id=2/> now", "jetzt +", [(2, 0), (1, 1)], "jetzt <x id=1/>+<x id=2/>"),
    ("- <b>\"tea now\"</b>", "- \"Tee jetzt\"", [(0, 0), (1, 1), (2, 2)], "- <b>\"Tee jetzt\"</b>"),
    ("one <br/> two", "eins zwei", [(0, 0), (1, 1)], "eins <br/> zwei"),
    ("tea<sup></sup> here", "Hier Tee", [(1, 0), (0, 1)], "Hier Tee<sup></sup>"),
    ("ask <b>@<i>tom</i></b>, please", "bitte @tom, fragen", [(2, 0), (1, 1), (0, 2)], "bitte <b>@<i>tom</i></b>, fragen"),
    ("drink <b>tea</b>", "茶を飲む", [(1, 0), (1, 1), (0, 2), (0, 3)], "<b>茶を</b>飲む")])
def test_elements_go_with_their_words(source, target, links, expected):
    markup = strip_tags(source)
    assert markup is not None
    assert set_tags(markup, target, WordAlignment(words_of(markup.text), words_of(target), links)) == expected


def test_a_model_that_spells_otherwise_is_followed():
    markup = strip_tags("• Write to <b>tom@x.example</b> TODAY")
    assert markup is not None
    alignment = WordAlignment(
        ["write", "to", "⟦1⟧", "today"], ["heute", "an", "⟦1⟧", "schreiben"], [(3, 0), (1, 1), (2, 2), (0, 3)])
    assert set_tags(markup, "• HEUTE an tom@x.example SCHREIBEN", alignment) == "• HEUTE an <b>tom@x.example</b> SCHREIBEN"


def test_objects_that_a_model_loses_or_doubles_come_once():
    [markup] = parse_html("<p>Run <code>a</code> or <code>b</code> now</p>").texts
    [first, second] = markup.objects
    for target in (f"{first} jetzt", f"{first} {first} jetzt {second}", "jetzt", f"jetzt {second}, {first}"):
        words = words_of(markup.text), words_of(target)
        output = set_tags(markup, target, WordAlignment(*words, [(len(words[0]) - 1, words[1].index("jetzt"))]))
        assert sorted(re.findall("<code>.</code>", output)) == ["<code>a</code>", "<code>b</code>"]
        assert not set(output) & {first, second}
        assert "jetzt" in output.split()


def test_deep_nesting_ends_in_no_recursion():
    source = "x " + "<b>" * 1500 + "y" + "</b>" * 1500 + " z"
    markup = strip_tags(source)
    assert markup is not None
    assert copied(markup) == source
