"""Options as they are typed: any path or text is a value, without quotes for Hydra."""

from __future__ import annotations

import os
import re

# What make hands on of ARGS="...", untouched by make and by a shell.
ARGS = "TRANSLATE_ARGS"
# Where quotes enclose a word, or a value in it; anywhere else a quotation mark is a character, as in o'clock.txt.
QUOTED = r"""(?<![^\s=\[,])(?:'[^']*'|"(?:\\.|[^"\\])*")(?=[\s\],]|$)"""
WORD = re.compile(rf"(?:{QUOTED}|\\.|\S)+", re.DOTALL)
PART = re.compile(rf"{QUOTED}|\\.", re.DOTALL)
# Values that Hydra reads as text, a number, true, false or null.
PLAIN = re.compile(r"(?! )[\w/.\-+$%*@?|: ]*(?<! )", re.ASCII)
# What is written for Hydra: quotes, lists, mappings, calls of its functions, escapes, interpolations.
WRITTEN = re.compile(
    r"""'(\\'|[^'])*'|"(\\"|[^"])*"|\[.*\]|\{.*\}|(int|str|bool|float|choice|range|interval|tag|sort|shuffle|glob)\(.*\)"""
    r"""|.*\\.*|.*\$\{.*""", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Return the words of a line as a shell would, but without expanding anything in them."""
    return [PART.sub(_unquoted, word) for word in WORD.findall(text)]


def _unquoted(part: re.Match[str]) -> str:
    text = part[0]
    return re.sub(r'\\(["\\$`])', r"\1", text[1:-1]) if text[0] == '"' else text[1:-1] if text[0] == "'" else text[1:]


def take_literally(words: list[str]) -> list[str]:
    """Return `name=value` words with quotes for Hydra around each value that it would misread; others stay.

    With --multirun a comma separates the values of several runs, elsewhere it is a character.
    """
    several = not {"-m", "--multirun"}.isdisjoint(words)
    return [word if several and "," in word else _literal(word) for word in words]


def _literal(word: str) -> str:
    name, sign, value = word.partition("=")
    return f"{name}={_for_hydra(value)}" if sign and not word.startswith("-") else word


def _for_hydra(value: str) -> str:
    if value.startswith("~/"):
        value = os.path.expanduser(value)  # noqa: PTH111 of a path, or of what looks like one
    if PLAIN.fullmatch(value):
        return value
    if re.fullmatch(r"\[[^\[\]{}\\]*\]", value) and not re.search(r"""[\[,]\s*['"]""", value):  # a list of texts
        return f"[{','.join(map(_for_hydra, value[1:-1].split(',')))}]"
    if WRITTEN.fullmatch(value):
        return value
    return "'" + value.replace("'", r"\'") + "'"
