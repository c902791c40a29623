"""Tags that tell a model of several languages which one to translate to.

Johnson et al. 2017, https://arxiv.org/abs/1611.04558: the tag comes first in the source. Spelled as in OPUS-MT: >>de<<.
"""

from __future__ import annotations

import re

TAG = re.compile(r">>[^<>\s]+<<")


def tag_of(language: str) -> str:
    """The tag of a language, as it stands before a text."""
    return f">>{language}<< "


def is_tag(piece: str) -> bool:
    return TAG.fullmatch(piece) is not None


def split_tag(text: str) -> tuple[str, str]:
    """The tag that a text begins with, or nothing; and the text behind it."""
    found = TAG.match(text)
    return (f"{found[0]} ", text[found.end():].lstrip()) if found else ("", text)
