"""Texts as people write them: every row of the robustness table changes clean sentences in one way.

A new row is one line in `SCORED`, or in `KEPT` for something that must come through unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from translator.inference.ranking import NUMBER
from translator.metrics.scores import WORD

Change = Callable[[str, Random], str]

# The mark that ends a sentence, in most scripts.
STOP = re.compile(r"\s*[.!?…。！？؟।۔]*\s*$")
# One typing error for this number of words.
WORDS_PER_ERROR = 8


def unchanged(text: str, random: Random) -> str:
    """Return the text."""
    return text


@dataclass(frozen=True)
class Scored:
    """A row scored by BLEU against what is possible: the outputs for the clean sentences, changed as the references are."""

    name: str
    source: Change = unchanged
    target: Change = unchanged  # of references, and of the outputs for clean sentences
    lower_cased: bool = False  # before scoring
    joined: int = 1  # sentences a line


@dataclass(frozen=True)
class Kept:
    """A row that counts outputs which hold what was put into their sources."""

    name: str
    item: Callable[[Random], str]
    put: Callable[[str, str, Random], str]  # (text, item, random) -> source
    holds: Callable[[str, str], bool]  # (output, item)


def split_stop(text: str) -> tuple[str, str]:
    """Return a sentence without its final mark, and the mark with the space around it."""
    end = STOP.search(text)
    return (text[: end.start()], end[0]) if end else (text, "")


def upper(text: str, random: Random) -> str:
    """Return the text in capitals."""
    return text.upper()


def title(text: str, random: Random) -> str:
    """Return the text with a capital at the start of every word."""
    return re.sub(r"(?<!\S)([^\w\s]*)([^\W\d_])", lambda start: start[1] + start[2].title(), text)


def lower(text: str, random: Random) -> str:
    """Return the text without capitals."""
    return text.lower()


def without_stop(text: str, random: Random) -> str:
    """Return the text without its final mark."""
    return split_stop(text)[0] or text


def doubled_spaces(text: str, random: Random) -> str:
    """Return the text with two spaces for one."""
    return text.replace(" ", "  ")


def mistyped(text: str, random: Random) -> str:
    """Swap two letters, leave one out or double one: one error for about `WORDS_PER_ERROR` words."""
    share = len(WORD.findall(text)) / WORDS_PER_ERROR
    for _ in range(int(share + random.random())):
        places = [i for i in range(len(text) - 1) if text[i : i + 2].isalpha() and not _is_mark(text[i + 2 : i + 3])]
        if places:
            place = random.choice(places)
            first, second = text[place], text[place + 1]
            text = text[:place] + random.choice((second + first, second, first + first + second)) + text[place + 2 :]
    return text


def around(before: str, after: str) -> Change:
    """Return the change that puts marks around a text."""
    return lambda text, random: before + text + after


def exclaimed(text: str, random: Random) -> str:
    """Return the text with three exclamation marks at its end; a question keeps its own."""
    return text.rstrip().rstrip(".!。！…") + "!!!"


def marked(name: str, change: Change) -> Scored:
    """Return the row of a mark that belongs to source and reference."""
    return Scored(name, change, change)


SCORED = (
    Scored("ALL CAPS", upper, lower_cased=True),
    Scored("Title Case", title, lower_cased=True),
    Scored("lower case", lower, lower_cased=True),
    marked("without final stop", without_stop),
    Scored("typing errors", mistyped),
    Scored("doubled spaces", doubled_spaces),
    *(Scored(f"{count} sentences a line", joined=count) for count in (2, 3, 5)),
    marked("“curly quotes”", around("“", "”")),
    marked("(brackets)", around("(", ")")),
    marked("- dash", around("- ", "")),
    marked("• bullet", around("• ", "")),
    marked("three marks!!!", exclaimed),
    marked("1. number", around("1. ", "")),
    marked("Anna: name", around("Anna: ", "")),
    marked("emoji 😀", around("", " 😀")),
    marked("<b>tags</b>", around("<b>", "</b>")))


def inserted(text: str, item: str, random: Random) -> str:
    """Insert an item between two words or before the final mark; every other time at the end."""
    if random.random() < 0.5:
        return f"{text} {item}"
    body, stop = split_stop(text)
    words = body.split(" ")
    place = random.randint(1, len(words))
    return " ".join([*words[:place], item, *words[place:]]) + stop


def linked(text: str, item: str, random: Random) -> str:
    """Make a word of a text a link: `item` is its opening tag."""
    start, end = random.choice([word.span() for word in re.finditer(r"\w+", text)] or [(0, len(text))])
    return f"{text[:start]}{item}{text[start:end]}</a>{text[end:]}"


def numbered(text: str, item: str, random: Random) -> str:
    """Put a number in the place of a text's own; before the final mark of a text that has none."""
    body, stop = split_stop(text)
    return NUMBER.sub(lambda _: item, text, count=1) if NUMBER.search(text) else f"{body} {item}{stop}"


def holds_once(output: str, item: str) -> bool:
    """Return whether an output holds an item exactly once."""
    return output.count(item) == 1


def holds_link(output: str, item: str) -> bool:
    """Return whether an output holds one link, with this opening tag, around some text."""
    return output.count("<a") == output.count("</a>") == 1 and re.search(rf"{re.escape(item)}.*\w.*</a>", output) is not None


def holds_number(output: str, item: str) -> bool:
    """Return whether an output holds the digits of a number in order, separated in any language's way."""
    digits = [str(unicodedata.decimal(character)) for character in item if character.isdecimal()]
    plain = "".join(str(unicodedata.decimal(character, character)) for character in output)
    separated = r"\W{0,2}".join(digits)
    return re.search(rf"(?<!\d){separated}(?!\d)", plain) is not None


def word(random: Random) -> str:
    """Return a made-up name of two or three syllables, in small letters."""
    return "".join(random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(random.randint(2, 3)))


def number(pattern: str) -> Callable[[Random], str]:
    """Return what makes numbers like a pattern: a random digit for each 0, one from 1 to 9 for each 1."""
    digits = {"0": "0123456789", "1": "123456789"}
    return lambda random: "".join(random.choice(digits.get(character, character)) for character in pattern)


EMOJI = ("😀", "❤️", "👍🏽", "🎉", "👩‍👩‍👧", "🇨🇦", "☕", "🙈")
PLACEHOLDERS: dict[str, Callable[[Random], str]] = {
    "e-mail": lambda random: f"{word(random)}.{word(random)}@example.org",
    "URL": lambda random: f"https://{word(random)}.example.org/{word(random)}?id={random.randint(1, 99)}",
    "address": lambda random: f"www.{word(random)}.example",
    "%s": lambda random: random.choice(("%s", "%d", f"%({word(random)})s")),
    "{name}": lambda random: f"{{{word(random)}}}",
    "@name": lambda random: f"@{word(random)}_{random.randint(1, 99)}",
    "#tag": lambda random: f"#{word(random).title()}",
    "emoji": lambda random: random.choice(EMOJI)}
NUMBERS: dict[str, Callable[[Random], str]] = {
    "years": lambda random: str(random.randint(1800, 2030)),
    "ages": lambda random: str(random.randint(2, 99)),
    "prices": number("$11.00"),
    "decimals": number("1.01"),
    "times": lambda random: f"{random.randint(1, 12)}:{random.randint(10, 59)}",
    "thousands": number("10,000"),
    "telephone": number("+10 00 0000 0000")}
# By group: the sentences of a group are dealt to its rows.
KEPT = {
    "placeholders": tuple(Kept(name, item, inserted, holds_once) for name, item in PLACEHOLDERS.items()),
    "links": (Kept("<a href>", lambda random: f'<a href="https://example.org/{word(random)}">', linked, holds_link),),
    "numbers": tuple(Kept(name, item, numbered, holds_number) for name, item in NUMBERS.items())}


def _is_mark(character: str) -> bool:
    return unicodedata.category(character or " ").startswith("M")
