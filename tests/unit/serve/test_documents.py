"""Files whose texts are replaced keep everything else."""

from __future__ import annotations

import io
import zipfile

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import polib
from lxml import etree

from translator.serve.documents import parse_file
from translator.serve.documents.word import MOST_BYTES, W
from translator.serve.service import Unanswerable

MOST = 10_000
SUBTITLES = """\
1
00:00:01,000 --> 00:00:03,500
The dog sees
a red house.

2
00:00:04,000 --> 00:00:06,000 X1:10
{\\an8}- Where is <i>the dog</i>?
- Here.

3
00:00:07,000 --> 00:00:08,000

"""
CATALOGUE = """\
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=0;\\n"

#: dogs.c:1
msgid "one dog\\n"
msgid_plural "%d dogs\\n"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "cat"
msgstr "Katze"

#, fuzzy
msgid "mouse"
msgstr "Ratte?"

msgid "horse"
msgstr ""

#~ msgid "cow"
#~ msgstr ""
"""


def word(body: str, packing: int = zipfile.ZIP_DEFLATED, **others: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{W[1:-1]}"><w:body>{body}</w:body></w:document>')
        for name, text in others.items():
            archive.writestr(name, text)
    return file.getvalue()


def paragraphs(file: bytes) -> list[list[tuple[str, bool]]]:
    """The texts of each paragraph's runs, and whether they are bold; a tag's name for other elements."""
    root = etree.fromstring(zipfile.ZipFile(io.BytesIO(file)).read("word/document.xml"))
    return [
        [(part.text or part.tag.removeprefix(W), run.find(f".//{W}b") is not None)
         for run in paragraph.iter(f"{W}r") for part in run if part.tag != f"{W}rPr"]
        for paragraph in root.iter(f"{W}p")]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["a.txt", "b.HTML"])
def test_texts_come_back_whole(name, mark):
    content = mark + "<p title='x'>a <b>b</b> &amp; c</p>\r\n\n<pre> \u2028 </pre>\x85".encode()
    contents = parse_file(name, content, MOST)
    sources = [text if isinstance(text, str) else text.join([part.source for part in text.texts]) for text in contents.texts]
    assert contents.write(sources) == content


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_subtitles_keep_times_and_speakers(end):
    contents = parse_file("a.srt", SUBTITLES.replace("\n", end).encode(), MOST)
    assert contents.texts == ["The dog sees a red house.", "- Where is <i>the dog</i>?", "- Here."]
    assert contents.write(contents.texts).decode() == SUBTITLES.replace("\n", end)
    longer = parse_file("a.srt", SUBTITLES.encode(), MOST).write(["Der gelbe Hund sieht ein rotes Haus.", "- Wo?", "- Hier."])
    assert longer.decode() == SUBTITLES.replace("The dog sees\na red house.", "Der gelbe Hund sieht\nein rotes Haus.").replace(
        "- Where is <i>the dog</i>?", "- Wo?").replace("- Here.", "- Hier.")


def test_a_catalogue_gets_only_what_it_lacks():
    contents = parse_file("a.po", CATALOGUE.encode(), MOST)
    assert contents.texts == ["one dog\n", "%d dogs\n", "horse"]
    written = polib.pofile(contents.write(["ein Hund\n", "%d Hunde\n", "Pferd"]).decode())
    assert [(entry.msgstr, entry.fuzzy) for entry in written] == [
        ("", True), ("Katze", False), ("Ratte?", True), ("Pferd", True), ("", False)]
    assert written[0].msgstr_plural == {0: "ein Hund\n", 1: "%d Hunde\n", 2: "%d Hunde\n"}


@pytest.mark.parametrize("number", ["2\n", ""])
def test_a_cue_ends_where_the_next_begins(number):
    text = f"1\n00:00:01,000 --> 00:00:02,000\nIn\n1999\n{number}00:00:03,000 --> 00:00:04,000\nSee\n"
    text = text if number else text.replace("1999", "Rome")
    contents = parse_file("a.srt", text.encode(), MOST)
    assert contents.texts == ["In 1999" if number else "In Rome", "See"]
    assert contents.write(["Im Jahr 1999", "Sieh"]).decode() == text.replace("In\n", "Im Jahr\n").replace(
        "See", "Sieh").replace("Rome", "1999")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_catalogue_changes_only_where_it_is_translated(end):
    header = '# by me\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"no colon\\n"\n\n'
    untranslatable = 'msgctxt "c"\nmsgid ""\nmsgstr ""\n\nmsgid "d"\nmsgid_plural ""\nmsgstr[0] ""\n\n'
    wanting = '#, c-format\n#| msgid "x"\n{}msgctxt "c"\nmsgid "a \\"\\x\\\\"\n  "b\\n"\n{}\n#~ msgid "z"\n#~ msgstr ""\n# end'
    text = header + untranslatable + wanting.format("", 'msgstr ""\n')
    contents = parse_file("a.po", text.replace("\n", end).encode(), MOST)
    assert contents.texts == ['a "\\x\\b\n']
    expected = header + untranslatable + wanting.format("", 'msgstr ""\n"1\\"\\n"\n"2"\n').replace(
        "#| msgid", "#, fuzzy\n#| msgid")
    assert contents.write(['1"\n2']).decode() == expected.replace("\n", end)


@pytest.mark.parametrize("text", [
    'msgid "a\nmsgstr ""', 'msgid "a"', 'msgstr ""', '"a"', 'msgid "a"\nmsgid "b"\nmsgstr ""', 'msgid "a"\nmsgstr "" x', ""])
def test_a_damaged_catalogue_is_refused(text):
    with pytest.raises(Unanswerable, match="not a catalogue"):
        parse_file("a.po", text.encode(), MOST)


def test_a_catalogue_that_is_a_path_is_not_opened(tmp_path):
    (tmp_path / "secret.po").write_text(CATALOGUE)
    with pytest.raises(Unanswerable, match="not a catalogue"):
        parse_file("a.po", str(tmp_path / "secret.po").encode(), MOST)


def test_word_formatting_follows_its_words():
    body = (
        "<w:p><w:pPr><w:jc w:val='center'/></w:pPr><w:r><w:t xml:space='preserve'>The </w:t></w:r><w:proofErr w:type='x'/>"
        "<w:r><w:rPr><w:b/><w:lang w:val='en'/></w:rPr><w:t>r</w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>ed</w:t></w:r>"
        "<w:r><w:t xml:space='preserve'> house &amp; dog</w:t><w:tab/><w:t>Page</w:t></w:r></w:p><w:p/>")
    contents = parse_file("a.docx", word(body, **{"word/media.bin": "x"}), MOST)
    assert contents.plain == ["The red house & dog\nPage", ""]
    [html] = [text.join([part.source for part in text.texts]) for text in contents.texts if text.texts]
    assert html == 'The <r id="1">red</r> house &amp; dog<br id="0"/>Page'
    written = contents.write(['Das Haus &lt; ist <r id="1">rot</r>\x01<br id="0"/>Seite', ""])
    assert paragraphs(written) == [
        [("Das Haus < ist ", False), ("rot", True), ("tab", False), ("Seite", False)], []]
    archive = zipfile.ZipFile(io.BytesIO(written))
    assert archive.read("word/media.bin") == b"x"
    assert b"w:jc" in archive.read("word/document.xml")


def test_word_fields_and_insertions_stay_and_are_warned_of():
    field = "".join(
        f"<w:r>{part}</w:r>" for part in (
            "<w:fldChar w:fldCharType='begin'/>", "<w:instrText>REF x</w:instrText>", "<w:fldChar w:fldCharType='separate'/>",
            "<w:t>chapter</w:t>", "<w:fldChar w:fldCharType='end'/>"))
    body = (f"<w:p><w:r><w:t xml:space='preserve'>See </w:t></w:r>{field}<w:ins><w:r><w:t>new</w:t></w:r></w:ins>"
            "<w:r><w:drawing><w:p><w:r><w:t>box</w:t></w:r></w:p></w:drawing></w:r></w:p>")
    contents = parse_file("a.docx", word(body), MOST)
    assert contents.plain == ["See", "box"]
    assert len(contents.warnings) == 1
    outer, inner = paragraphs(contents.write(['Siehe <x id="0"/><x id="1"/><x id="2"/>', "Kasten"]))
    assert [text for text, _ in outer] == [
        "Siehe ", "fldChar", "REF x", "fldChar", "chapter", "fldChar", "new", "drawing", "Kasten"]
    assert inner == [("Kasten", False)]
    assert not parse_file("a.docx", word("<w:p><w:r><w:t>See</w:t></w:r></w:p>"), MOST).warnings


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.exe", b"", "format not supported"), ("docx", b"", "format not supported"), ("a.txt", b"\xff", "not UTF-8"),
    ("a.html", b"a" * (MOST + 1), "exceeds text limit"), ("a.srt", b"hello", "no subtitles"), ("a.docx", b"PK", "not a Word"),
    ("a.docx", word("<w:p>" * 2_000 + "</w:p>" * 2_000), "not XML"), ("a.docx", word("<w:p/>" * 10_001), "exceeds text limit"),
    ("a.docx", word("", zipfile.ZIP_LZMA)[:60] + b"\xff" * 10 + word("", zipfile.ZIP_LZMA)[70:],
     "not a Word"),
    ("a.docx", word("", **{"word/a.bin": "a" * MOST_BYTES}), "when unpacked"), ("a.docx", word("<"), "not XML")],
    ids=lambda value: value if isinstance(value, str) else "")
def test_files_that_cannot_be_read_are_refused(name, content, message):
    with pytest.raises(Unanswerable, match=message):
        parse_file(name, content, MOST)


def test_word_reads_no_other_file(tmp_path):
    (tmp_path / "secret").write_text("sesame")
    hostile = io.BytesIO()
    with zipfile.ZipFile(hostile, "w") as archive:
        archive.writestr("word/document.xml", f'<!DOCTYPE x [<!ENTITY x SYSTEM "file://{tmp_path}/secret">]><w:document '
                         f'xmlns:w="{W[1:-1]}"><w:p><w:r><w:t>a &x;</w:t></w:r></w:p></w:document>')
    with pytest.raises(Unanswerable, match="document type declaration"):
        parse_file("a.docx", hostile.getvalue(), MOST)


def test_work_on_word_files_is_bounded():
    plain, bold = '<w:r><w:t xml:space="preserve">a </w:t></w:r>', "<w:rPr><w:b/></w:rPr>"
    large = word(f"<w:p><w:r><w:rPr>{'<w:a/>' * 9_000}</w:rPr><w:t>a</w:t></w:r></w:p>")
    many = word("<w:p><w:r>" + "<w:t>a</w:t><w:sym/>" * 1_001 + "</w:r></w:p>")
    for content, message in ((large, "too much formatting"), (many, "more than 2,000 parts")):
        with pytest.raises(Unanswerable, match=message):
            parse_file("a.docx", content, MOST)
    runs = word(f"<w:p>{plain}<w:r>{bold}" + '<w:t xml:space="preserve">dog </w:t><w:sym/>' * 900 + "</w:r></w:p>")
    contents = parse_file("a.docx", runs, MOST)
    [html] = [text.join([part.source for part in text.texts]) for text in contents.texts]
    written = zipfile.ZipFile(io.BytesIO(contents.write([html]))).read("word/document.xml")
    assert (written.count(b"<w:r>"), written.count(b"<w:b/>"), written.count(b"<w:sym/>")) == (2, 1, 900)


def test_comments_in_word_xml_are_ignored():
    between = "<!-- c --><?pi x?>"  # in formatting, they crashed libxml2's C14N
    body = f"<w:p><w:r><w:rPr>{between}<w:b/></w:rPr>{between}<w:t>A man{between} runs.</w:t></w:r>{between}</w:p>"
    contents = parse_file("a.docx", word(body), MOST)
    assert contents.plain == ["A man runs."]
    assert parse_file("a.docx", word(body.replace("<w:p>", "<w:p xmlns:q='not/absolute'>")), MOST).plain == contents.plain
    assert paragraphs(contents.write(["Ein Mann rennt."])) == [[("Ein Mann rennt.", True)]]
