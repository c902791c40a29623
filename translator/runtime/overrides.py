"""Options as they are typed: any path or text is a value, without Hydra's quotes."""

from __future__ import annotations

import os
import re

# The variable in which make passes ARGS="...", read by no shell.
ARGS = "TRANSLATE_ARGS"
# Quotes around a word, or a value in it; elsewhere a quotation mark is a character, as in o'clock.txt.
QUOTED = r"""(?<![^\s=\[,])(?:'[^']*'|"(?:\\.|[^"\\])*")(?=[\s\],]|$)"""
WORD = re.compile(rf"(?:{QUOTED}|\\.|\S)+", re.DOTALL)
PART = re.compile(rf"{QUOTED}|\\.", re.DOTALL)
# Values that Hydra reads as text, a number, true, false or null.
PLAIN = re.compile(r"(?! )[\w/.\-+$%*@?|: ]*(?<! )", re.ASCII)
# Hydra's own syntax: quotes, lists, mappings, function calls, escapes, interpolations.
WRITTEN = re.compile(
    r"""'(\\'|[^'])*'|"(\\"|[^"])*"|\[.*\]|\{.*\}|(int|str|bool|float|choice|range|interval|tag|sort|shuffle|glob)\(.*\)"""
    r"""|.*\\.*|.*\$\{.*""", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Split a line into words as a shell does, without expanding anything."""
    return [PART.sub(_unquoted, word) for word in WORD.findall(text)]


def _unquoted(part: re.Match[str]) -> str:
    text = part[0]
    return re.sub(r'\\(["\\$`])', r"\1", text[1:-1]) if text[0] == '"' else text[1:-1] if text[0] == "'" else text[1:]


def take_literally(words: list[str]) -> list[str]:
    """Quote the values of `name=value` words that Hydra would misread. With --multirun a comma separates values."""
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
