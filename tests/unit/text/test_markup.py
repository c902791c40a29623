"""Tags taken out of text, and the texts of HTML: nothing is lost."""

from __future__ import annotations

from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translator.text.html import SPACES, parse_html
from translator.text.markup import strip_tags

FRAGMENTS = (
    "Hello", "tea", "ü", "7", " ", "  ", "\n", ",", ".", "<", ">", "&", "&amp;", "&lt;", "&nbsp;", "\xa0", "&#39;",
    "&quot", "'", '"', "<b>", "</b>", '<a href="x>y">', "</a>", "<I>", "</i >", "<br>", "<br/>", "<p>", "</p>", "<li>",
    "</li>", "</div>", "<div class=notranslate>", "<span translate='no'>", "</span>", "<code>", "</code>", "<pre>",
    "</pre>", "<script>", "</script>", "<style>", "<!-- c -->", "<!--", "<!DOCTYPE html>", "<?x y?>", "<![CDATA[z]]>", "<![",
    "<img alt='a'>", "<x id=1/>", "</x>", "<b", "</", "@tom", "\U000f0000", "\x00", "\r\n")
TIDY = (
    "Hello", "tea", "drinks", " ", "&amp;", "&lt;", "&nbsp;", "<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "<br>", "<!-- c -->",
    "<code>x &amp; y</code>", '<img alt="a">', "<span translate=no>No</span>", "<ul>\n  <li>", "</li>\n</ul>")


def untranslated(html: str) -> str:
    document = parse_html(html)
    return document.join([markup.source for markup in document.texts])


@given(st.lists(st.sampled_from(FRAGMENTS)).map("".join) | st.text())
def test_any_html_comes_back_up_to_spellings(html):
    assert unescape(untranslated(html).translate(SPACES)) == unescape(html.translate(SPACES))


@given(st.lists(st.sampled_from(TIDY)).map("".join))
def test_html_comes_back_byte_for_byte(html):
    assert untranslated(html) == html


@pytest.mark.parametrize(("html", "texts"), [
    ("<p>One</p><p>two</p>", ["One", "two"]),
    ("One<br>two<BR/>three", ["One", "two", "three"]),
    ("<p>  <b>All of it</b>\n</p>", ["All of it"]),
    ("An <b>old</b>\n dog", ["An old  dog"]),
    ("A &lt;b&gt; &amp; &eacute;", ["A <b> & é"]),
    ("<pre>no</pre><script>no</script><style>no</style><textarea>no</textarea><!-- no -->", []),
    ('<div translate="no">no<p>no</p></div><div class="x notranslate">no</div>yes', ["yes"]),
    ("<ul><li>a<ul><li>b</ul><li>c</ul>", ["a", "b", "c"]),
    ("<table><tr><td>a<th>b</table>", ["a", "b"]),
    ("<title>A &amp; b</title>", ["A & b"]),
    ("1.50 | &nbsp; | 12", []),
    ("yes <div no", ["yes"]),
    ("yes <![ no", ["yes"]),
    ("yes <![if x]><b>yes</b><![endif]> <![CDATA[ > no ]]> yes", ["yes yes  yes"]),
    ("<p class=notranslate>no<p>yes", ["yes"]),
    ("<p><code>no<p>yes", ["yes"])])
def test_the_texts_of_html(html, texts):
    assert [markup.text for markup in parse_html(html).texts] == texts


@pytest.mark.parametrize("kept", [
    "<code>make test</code>", '<span translate="no">Acme <b>Corp</b></span>', '<a href="/tom">@<span>tom</span></a>',
    '<a href="https://x.example/a"><span class="invisible">https://</span>x.example/a</a>', '<a class="hashtag">#tea</a>',
    '<sup><a href="#f1">[1]</a></sup>'])
def test_what_is_not_translated_is_one_object(kept):
    [markup] = parse_html(f"<p>See {kept}, please</p>").texts
    [standing] = markup.objects
    assert markup.text == f"See {standing}, please"
    assert markup.objects[standing] == kept
    removed = markup.without_objects()
    assert removed.text == "See, please"
    assert [tag.source for tag in removed.tags] == [kept]


def test_only_real_tags_of_plain_text_are_tags():
    for text in ("a < b and c > d", "a <b and c> d", "1 <2> 3", "<https://x.example>", "<tom@x.example>", "<3", "<>", "</>"):
        assert strip_tags(text) is None, text
    markup = strip_tags("Click <b>here</b><br/> <x id='1' k=v>now</x>.")
    assert markup is not None
    assert markup.text == "Click here now."
    assert markup.source == "Click <b>here</b><br/> <x id='1' k=v>now</x>."
