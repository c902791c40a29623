"""Split texts into sentences and long sentences into clauses, and join them again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from translator.text.abbreviations import (
    BEFORE_NUMBER,
    COUNTED,
    DETERMINERS,
    NEVER_LAST,
    OFTEN_LAST,
    OPENERS,
    SAYING,
    SELDOM_LAST,
)
from translator.text.writing_systems import UNSPACED

# Kana, Han and their marks: no space between sentences either.
_EAST_ASIAN = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0002fa1f]")
_SMILEY = r"(?:[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]++|[:;]-?[()DP](?!\w))"
# Where a sentence may end. Each run of spaces or marks is tried once, so that any text takes linear time.
_BOUNDARY = re.compile(
    # Marks with closing quotes, brackets and footnotes (French puts a space before its quotes), then smileys and space.
    r"(?<![.!?…‽؟۔։።])(?P<mark>[.!?…‽؟۔։።]++)"
    r"(?P<closing>(?:[\"'»«”“’‘)\]*¹²³⁰-⁹\u2069]|\[\d{1,3}\]|[ \u00a0\u202f]»(?=[\s,;:.]|$))*+)"
    rf"(?: ?{_SMILEY})*+(?P<space>\s++)(?=\S)"
    # Marks without a space behind: tea.She
    r"|(?<![.!?])(?P<tight>[.!?]++)(?=[^\W\d_]|[¿¡])"
    # East and South Asia's marks, which need no space.
    r"|(?<![。！？｡।॥။])[。！？｡।॥။][。！？｡।॥။!?…]*+(?P<quote>[」』”’）)】》\"]*+)\s*+(?=\S)"
    # A line break, and the bullet of a list.
    r"|(?<!\s)[^\S\n]*+\n\s*+(?=\S)|(?<!\s)\s++(?=[•‣◦▪●]\s)")
# What follows a boundary: quotes or a dash, and a word.
_NEXT = re.compile(
    r"(?P<opening>[^\w\s]{0,4}+[ \u00a0\u202f]?)(?P<word>\w{0,20}+['’]?)(?P<dot>\.?)(?P<inner>(?:(?<=\.)\w|[(@/=])?)")
_QUOTATION = re.compile(r"\s{0,4}[\"'“„«»‘]")
# The rest of a sentence that begins with a quotation: "Why?" Tom asked.
_SAYING = re.compile(rf"(?:[\w.]{{1,20}}+\s){{0,3}}?(?:{'|'.join(sorted(SAYING))})\b", re.IGNORECASE)
_EAST_ASIAN_SAYING = re.compile(r"と|って|、|，|など|[^。！？，、\s]{0,4}?[说說问問喊叫答道](?![：:])")
# The number or letter of a list's item.
_ITEM = re.compile(r"\s*(?:\d{1,3}(?:\.\d{1,3})*|[IVX]{1,5}|[A-Za-z])\.")
_JOINED = re.compile(r"^.*-|^\w{1,2}['’]")
_ORDINAL = re.compile(r"\d{1,2}|[IVX]{2,5}")
# A word with a vowel or in capitals, unlike Blvd, and a number that is no ordinal.
_PLAIN = re.compile(
    r"(?=.*(?i:[aeiouyà-æè-ïò-öø-ýāăąēęěīįōőœūůűų]|[^\x00-\u024f]))[-'’\w]*[^\W\d_]['’]?[^\W\d_]['’]?"
    r"|[A-Z]{2,}|\d{3,}|\d+[:,]\d+|.*[$€£%].*")
_ABBREVIATIONS = NEVER_LAST | SELDOM_LAST | OFTEN_LAST
# Where a clause may end, the best places first: after its mark, between words, between characters that need no space.
_BREAKS = tuple(map(re.compile, (
    r"[,;:،؛]\s+(?=\S)|[，、；：]\s*(?=\S)|\S\s+[-–—]+\s+(?=\S)", r"\S\s+(?=\S)", f"[{UNSPACED}](?=[{UNSPACED}])")))


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, each with the space that follows it: joined, they are the text.

    By rules for the languages of `abbreviations`, and for any language whose sentences end in marks.
    """
    sentences, start = [], 0
    for match in _BOUNDARY.finditer(text):
        if _ends_sentence(text, start, match):
            sentences.append(text[start : match.end()])
            start = match.end()
    return [*sentences, text[start:]] if text[start:] or not sentences else sentences


def split_clauses(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Return the parts of a text, halved until each `fits` or has no place to break: joined, they are the text."""
    middle = None if fits(text) else _middle(text)
    if middle is None:
        return [text]
    return [*split_clauses(text[:middle], fits), *split_clauses(text[middle:], fits)]


def rejoined(sentences: Sequence[str], spaces: Iterable[str]) -> str:
    """Join the translations of sentences by the spaces behind their sources, but as the script of the translations has it."""
    text = behind = ""
    for sentence, space in zip(sentences, spaces, strict=True):
        if sentence:
            text += (_adapted(behind, text[-1] + sentence[0]) if text else "") + sentence
            behind = space
    return text


def space_behind(sentence: str) -> str:
    """Return the space at the end of a sentence."""
    return sentence[len(sentence.rstrip()) :]


def _adapted(space: str, around: str) -> str:
    """Return the space between two characters: East Asia has none but the wide one, others have one but no wide one."""
    if _EAST_ASIAN.search(around):
        return re.sub("[ \u00a0]", "", space)
    return space.replace("\u3000", " ") or " "


@dataclass(frozen=True)
class _Stop:
    """A mark with what is around it."""

    words: Sequence[str]  # the last three before it, without quotes; empty ones where there are none
    mark: str
    closing: str  # quotes and brackets
    opening: str  # quotes, brackets and dashes before the next word
    word: str  # the next one
    dot: str  # behind that
    inner: str  # what shows that the next word is part of an address or of code

    @classmethod
    def of(cls, text: str, start: int, match: re.Match[str]) -> _Stop:
        """Read what is around a boundary of a sentence that begins at `start`; long words are cut."""
        mark, following = match["mark"] or match["tight"], _NEXT.match(text, match.end())
        assert following  # it matches anything
        before = text[max(start, match.start() - 40) : match.start()]
        words = [word.strip("\"'([{)]}„“”«»‚‘’¿¡-–—*•") for word in before.split()]
        words = ["", "", "", *filter(None, words), *([""] if before[-1:].isspace() else [])]
        return cls(words[-3:], mark, match["closing"] or "", **following.groupdict())

    @property
    def opens(self) -> bool:
        """Whether the next word shows that a sentence begins."""
        word, initial = self.word.lower().replace("’", "'"), len(self.word) == 1 and self.dot
        return bool(set("¿¡") & set(self.opening)) or (not initial and not OPENERS.isdisjoint({word, word.rstrip("'")}))

    @cached_property
    def stem(self) -> str:
        """The word before the mark, without what a hyphen or an apostrophe joins to it: J.-C, l'av."""
        return _JOINED.sub("", self.words[-1])

    @cached_property
    def names(self) -> set[str]:
        """By what the word before the mark may be listed: unchanged, by its stem, or with the letter before it; in any case."""
        *_, previous, last = self.words
        names = {last, self.stem, previous + last if len(previous) == 2 and previous[1] == "." else last}
        return names | {name.lower() for name in names} | {name.capitalize() for name in names if name.isupper()}

    def follows(self, abbreviations: frozenset[str]) -> bool:
        """Return whether the word before the mark is one of these."""
        return not abbreviations.isdisjoint(self.names)


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Return whether a sentence that begins at `start` ends at a boundary."""
    if match.start() == start:  # marks without a sentence
        return False
    if match["quote"]:
        return not _EAST_ASIAN_SAYING.match(text, match.end())
    if match["tight"]:
        return _ends_without_space(_Stop.of(text, start, match))
    if not match["mark"] or "\n" in match["space"]:
        return True
    if _ITEM.fullmatch(text, start, match.end("mark")) or text[match.end()] in ".!?…":
        return False
    if match["closing"] and _QUOTATION.match(text, start) and _SAYING.match(text, match.end()):
        return False
    stop = _Stop.of(text, start, match)
    if stop.word[:1].islower():
        return _ends_before_small_letter(stop)
    if stop.mark != "." or stop.closing or (_ITEM.match(text, start) and stop.word.isdigit() and stop.dot):
        return True
    return _full_stop_ends(stop)


def _ends_without_space(stop: _Stop) -> bool:
    """Return whether a mark without a space behind ends a sentence, rather than being part of an address, a name or code."""
    before, word = stop.words[-1], stop.word.rstrip("'’")
    if set("¿¡") & set(stop.opening) or (stop.mark != "." and word[:1].lower() == word[:1].upper()):  # no capitals: 本当?うん
        return True
    if not word.istitle() or (stop.inner and not stop.inner.isupper()) or re.search(r"[/@:=&\\_]\D|\.[a-z]", before):
        return False
    if stop.mark != ".":
        return True
    likely = stop.opens or len(word) > 2 or (before.islower() and not stop.dot)  # unlike Node.Js
    return likely and len(before) > 1 and _PLAIN.fullmatch(before) is not None and not stop.follows(_ABBREVIATIONS)


def _ends_before_small_letter(stop: _Stop) -> bool:
    """Return whether a sentence ends before a small letter, as in texts whose sentences do not all begin with capitals."""
    if set("¿¡") & set(stop.opening):
        return True
    if "…" in stop.mark or ".." in stop.mark or re.search("[-–—]", stop.opening) or stop.word in SAYING:
        return False
    if stop.mark != ".":
        return not stop.closing
    last = stop.words[-1]
    if last == "i":  # Tom and i. we went
        return stop.opens
    short = last[:1].isupper() and last in BEFORE_NUMBER  # Mo. bis Fr.
    return _PLAIN.fullmatch(last) is not None and not (short or _ORDINAL.fullmatch(last) or stop.follows(_ABBREVIATIONS))


def _full_stop_ends(stop: _Stop) -> bool:
    """Return whether a full stop ends a sentence, before a word that does not begin with a small letter."""
    *_, previous, last = stop.words
    if stop.follows(NEVER_LAST):
        return False
    if stop.word[:1].isdigit() and (stop.follows(BEFORE_NUMBER) or last.endswith("str")):  # Hauptstr. 5
        return False
    if _ORDINAL.fullmatch(last) and not stop.opens:
        return not _is_ordinal(stop)
    unit = stop.stem in set("hlmgst") and previous[-1:].isdigit()  # 8 h.
    return stop.opens or unit or stop.follows(OFTEN_LAST) or not (stop.follows(SELDOM_LAST) or _is_initial(stop.stem))


def _is_ordinal(stop: _Stop) -> bool:
    """Return whether a number with a full stop is a German ordinal or part of a date."""
    before, previous, last = stop.words
    if stop.word.isdigit():
        return (len(stop.word) <= 2 and bool(stop.dot)) or (len(stop.word) == 4 and previous.rstrip(".").isdigit())
    return stop.word.lower() in COUNTED or (last.isdigit() and previous.lower() in DETERMINERS and before != "I")


def _is_initial(word: str) -> bool:
    """Return whether a word is a letter, except I, or letters with full stops between: J. Smith, U.S. Army."""
    parts = word.split(".")
    letters = all(part.isalpha() and len(part) <= 3 for part in parts) and word.lower() != word.upper()
    return letters and word != "I" and (len(word) == 1 or len(parts) > 1)


def _middle(text: str) -> int | None:
    """Return where to halve a text: at the best kind of break in its middle half, else at any break; nearest to the middle."""
    ends: list[int] = []
    for places in _BREAKS:
        ends += [match.end() for match in places.finditer(text)]
        if inner := [end for end in ends if len(text) <= 4 * end <= 3 * len(text)]:
            ends = inner
            break
    return min(ends, key=lambda end: abs(2 * end - len(text)), default=None)
