"""Placeholders: parts of a text that a translation must keep, each masked by one reserved piece of the vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from translator.text.writing_systems import UNSPACED

MOST_PLACEHOLDERS = 9  # ⟦1⟧ to ⟦9⟧
PLACEHOLDER = re.compile("⟦([1-9])⟧")
Span = tuple[int, int]  # start and end in characters

# What addresses hold: neither spaces, quotes and brackets, nor characters of scripts without spaces. They end in no mark.
_ADDRESS = rf"(?:[^\s<>\"“”„«»()\[\]{UNSPACED}\u3000-\u303f\uff00-\uff60]|\([^\s()]*\))+(?<![.,;:!?'’…*])"
_DOMAINS = "com|org|net|edu|gov|info|io|eu|de|at|ch|uk|fr|es|it|nl|cz|pl|ru|jp|cn|br"
_EXTENSIONS = (
    "txt|md|pdf|docx?|xlsx?|pptx?|od[tsp]|csv|tsv|jsonl?|ya?ml|toml|xml|html?|css|js|ts|py|sh|cpp|java|rs|exe|zip|gz|tar|png"
    "|jpe?g|gif|svg|webp|mp[34]|wav|ogg|iso|log|cfg|ini|conf")
PICTURE = (r"(?:[\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
           r"[\u200d\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f]*)+")
EMOTICON = r"(?:[:;=][’'o-]?[)(\]\[DPp/|*]|<3)"
_SPANS = "|".join((
    r"⟦[1-9]⟧",
    rf"(?<![A-Za-z0-9_])(?i:(?:https?|ftp)://|www\.|mailto:){_ADDRESS}",
    r"(?<![\w.+-])[\w.+-]+(?:['’][\w.+-]+)*@[\w-]+(?:\.[\w-]+)+",
    r"(?<![\w@])@\w[\w.-]*(?<![.-])(?:@[\w-]+(?:\.[\w-]+)+)?",  # @name, @name@server
    r"(?<![\w&])#\w+",
    r"(?<![\w:]):[a-z][a-z0-9_+-]*:(?![\w:])",  # :emoji_name:
    r"`[^`\n]+`",
    # Formats: %s, %(name)s, %1$s, %.2f, {}, {name}, {{ name }}, ${name}, $name, $1
    r"(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+0#]*\d*(?:\.\d+)?(?:ll?|h)?[sdifuxXgGeEc@](?![^\W\d_])",
    r"\$?\{\{[^{}\n]*\}\}|\$?\{[^{}\s]*\}",
    r"(?<![\w$])\$(?:[^\W\d]\w*|\d(?!\w|[.,]\d))",
    # Paths: /usr/bin, ./x, ~/x, C:\x, a/b/c.txt, report.pdf; domains
    rf"(?<![\w/.~])(?:~|\.\.?)?/[\w.~-]+(?:/{_ADDRESS})?(?<!\.)|(?<!\w)[A-Za-z]:\\{_ADDRESS}",
    rf"(?<![\w./-])(?:[\w-]+[./])+(?:(?:{_EXTENSIONS})(?![\w-]|\.\w)|(?:{_DOMAINS})(?![\w-]|\.\w)(?:/{_ADDRESS})?)",
    # Dates and times; telephone numbers; numbers with what groups their digits: 25.50, 7:30, v1.2.3-rc1; 10 000; three or more
    # digits
    r"(?<!\w)\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\w)",
    r"(?<![\w+])\+?\(?(?=(?:\d[() ./-]*){7})\d[\d() ./-]*\d(?!\w)",
    r"(?<![\w.,:'’/-])v?\d+(?:[.,:'’/\u00a0\u202f×x–-]\d+)+(?:[.-]?(?:alpha|beta|rc|dev|post|[ab])\.?\d*(?!\w))?",
    r"(?<![\w.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\w)|(?<![\w.,])\d{3,}(?!\w)",
    # Arrows, pictures and emoji with their modifiers; emoticons
    PICTURE, rf"(?<!\S){EMOTICON}(?!\S)"))
_PATTERN = re.compile(_SPANS)


def placeholder(number: int) -> str:
    """Return the piece that stands for the span of this number, from 1."""
    return f"⟦{number}⟧"


def find_spans(text: str) -> list[Span]:
    """Return the parts of a text that must come through untouched, in order; none touches the next.

    Addresses, @names, #tags, format fields, paths, versions, numbers of three or more digits, emoji. Tags are not found here.
    """
    return joined([match.span() for match in _PATTERN.finditer(text)])


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans in order, with overlapping or touching ones made one."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            start, end = result[-1][0], max(end, result.pop()[1])
        result.append((start, end))
    return result


def mask(text: str, spans: Sequence[Span]) -> tuple[str, tuple[str, ...]]:
    """Return the text with a placeholder for each of the first nine spans, and what they stand for: `fill` undoes it.

    spans: in order, apart from each other. A text with a placeholder of its own beyond them is returned unchanged.
    """
    parts, values, last = [], [], 0
    for number, (start, end) in enumerate(spans[:MOST_PLACEHOLDERS], 1):
        parts += [text[last:start], placeholder(number)]
        values.append(text[start:end])
        last = end
    parts.append(text[last:])
    if any(PLACEHOLDER.search(part) for part in parts[::2]):
        return text, ()
    return "".join(parts), tuple(values)


def fill(text: str, values: Sequence[str]) -> str:
    """Return the text with each placeholder replaced by the value of its number, from 1; others stay."""
    def value(match: re.Match[str]) -> str:
        number = int(match[1])
        return values[number - 1] if number <= len(values) else match[0]

    return PLACEHOLDER.sub(value, text)


def numbers_in(text: str) -> list[int]:
    """Return the numbers of a text's placeholders, in order."""
    return [int(match[1]) for match in PLACEHOLDER.finditer(text)]
