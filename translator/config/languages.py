"""Tags with which a source begins: of its target language, such as >>de<<, or of back-translations; or its context.

Johnson et al. 2017, https://arxiv.org/abs/1611.04558; Caswell et al. 2019, https://arxiv.org/abs/1906.06442.
"""

from __future__ import annotations

import re

TAG = re.compile(r">>[^<>\s]+<<")
SEPARATOR = ">>sep<<"  # follows each sentence of context before a source
LEAD = re.compile(rf"(?s:.*){SEPARATOR}|{TAG.pattern}")
BACK_TRANSLATED = ">>bt<<"  # begins the sources of training pairs that a model back-translated


def tag_of(language: str) -> str:
    """Return the tag of a language, as it precedes a text."""
    return f">>{language}<< "


def is_tag(piece: str) -> bool:
    return TAG.fullmatch(piece) is not None


def split_tag(text: str) -> tuple[str, str]:
    """Split a text into its tag or context, which may be empty, and the rest."""
    found = LEAD.match(text)
    return (f"{found[0]} ", text[found.end():].lstrip()) if found else ("", text)
