"""Options as they are typed: any path or text is a value, without Hydra's quotes."""

from __future__ import annotations

import os
import re
import shlex

from translator.runtime.errors import UserError

# Values that Hydra reads as text, a number, true, false or null.
PLAIN = re.compile(r"(?! )[\w/.\-+$%*@?|: ]*(?<! )", re.ASCII)
# Hydra's own syntax: quotes, lists, mappings, function calls, escapes, interpolations.
WRITTEN = re.compile(
    r"""'(\\'|[^'])*'|"(\\"|[^"])*"|\[.*\]|\{.*\}|(int|str|bool|float|choice|range|interval|tag|sort|shuffle|glob)\(.*\)"""
    r"""|.*\\.*|.*\$\{.*""", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Split a line into words as a shell does, without expanding anything."""
    try:
        return shlex.split(text)
    except ValueError as error:  # a quotation mark without its partner
        raise UserError(f"ARGS={text}: {error}. Close the quotation mark, or write \\ before it.") from error


def take_literally(words: list[str]) -> list[str]:
    """Quote the values of `name=value` words that Hydra would misread. With --multirun a comma separates values."""
    several = not {"-m", "--multirun"}.isdisjoint(words)
    taken = []
    for word in words:
        name, sign, value = word.partition("=")
        hydra = not sign or word.startswith("-") or (several and "," in word)
        taken.append(word if hydra else f"{name}={_for_hydra(value)}")
    return taken


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
