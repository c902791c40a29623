"""Message catalogues of gettext (.po). Translations are inserted, and all else stays byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from translator.serve.documents.contents import Contents, decode

LINE = re.compile(r"[^\n]*\n|[^\n]+")
STRING = re.compile(r'(?:(?P<keyword>msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*)?"(?P<text>(?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\(.)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}
ESCAPED = str.maketrans({character: f"\\{letter}" for letter, character in ESCAPES.items()})


def parse_po(content: bytes, most: int) -> Contents:
    """Parse a catalogue: the messages without a translation are its texts.

    The new translations are marked fuzzy, gettext's mark of a translation to review.
    """
    text, mark = decode(content, most)
    lines = LINE.findall(text)
    messages = [message for message in _messages(lines) if message.lacks_translation]

    def write(translations: Sequence[str]) -> bytes:
        new, left = list(lines), iter(translations)
        for message in messages:
            end = "\r\n" if lines[message.start].endswith("\r\n") else "\n"
            translated = message.translated([next(left) for _ in message.texts])
            for number in message.own:
                new[number] = ""
            new[message.own[0]] = "".join(_written(keyword, text, end) for keyword, text in translated.items())
            new[message.start] = f"#, fuzzy{end}{new[message.start]}"
        return mark + "".join(new).encode()

    return Contents([text for message in messages for text in message.texts], write)


@dataclass
class _Message:
    """A message: its strings by keyword, still escaped, and the numbers of its lines."""

    start: int  # of the first that is not a comment, except one with the message's previous text (#|)
    strings: dict[str, str] = field(default_factory=dict)
    own: list[int] = field(default_factory=list)  # of its translation

    @property
    def lacks_translation(self) -> bool:
        """Whether it can be translated. The header has no text."""
        forms = [text for keyword, text in self.strings.items() if keyword.startswith("msgstr")]
        plural = bool(self.strings.get("msgid_plural"))
        return bool(self.strings["msgid"]) and not any(forms) and plural != ("msgstr" in self.strings)

    @property
    def texts(self) -> list[str]:
        """The text, or its singular and plural."""
        texts = (self.strings.get(keyword) for keyword in ("msgid", "msgid_plural"))
        return [ESCAPE.sub(lambda escape: ESCAPES.get(escape[1], escape[0]), text) for text in texts if text]

    def translated(self, translations: Sequence[str]) -> Mapping[str, str]:
        """Return the translation for each keyword: all forms have the plural's, except the first of several."""
        forms = [keyword for keyword in self.strings if keyword.startswith("msgstr")]
        return {form: translations[0 if form == "msgstr[0]" and len(forms) > 1 else -1] for form in forms}


def _messages(lines: Sequence[str]) -> Iterator[_Message]:
    """Yield the messages of a catalogue. Raises ValueError for a line that does not belong in one."""
    message, keyword, start = _Message(0), "", None
    for number, line in enumerate(map(str.strip, lines)):
        if not line or line.startswith("#"):
            start = number if start is None and line.startswith("#|") else start
            continue
        match = STRING.fullmatch(line)
        if match and match["keyword"]:
            keyword = match["keyword"]
            if message.own and not keyword.startswith("msgstr"):
                yield message
                message = _Message(number if start is None else start)
            elif not message.strings:
                message.start = number if start is None else start
            start = None
        if not match or not keyword or (match["keyword"] and keyword in message.strings):
            raise ValueError(f"not a catalogue: line {number + 1:,}: {line[:80]}")
        message.strings[keyword] = message.strings.get(keyword, "") + match["text"]
        if keyword.startswith("msgstr"):
            message.own.append(number)
            if "msgid" not in message.strings:
                raise ValueError(f"not a catalogue: line {number + 1:,}: no msgid before msgstr")
    if not message.own:
        raise ValueError("not a catalogue: no msgstr at its end")
    yield message


def _written(keyword: str, text: str, end: str) -> str:
    """Return the lines of a string: one for each of the text's."""
    strings = [f'"{line.translate(ESCAPED)}"' for line in LINE.findall(text)] or ['""']
    return end.join([f'{keyword} ""', *strings] if len(strings) > 1 else [f"{keyword} {strings[0]}"]) + end
