"""Where a text may be parted into sentences (floor 1)."""

from __future__ import annotations

import re

# A mark that ends sentences, closing quotes and brackets with it; then space, unless the script does without.
BOUNDARY = re.compile(
    r"""(?P<end>(?<![.!?…])[.!?…]++["'»”’)\]]*+)\s++(?=(?P<next>\S))"""
    r"""|(?<![。！？])[。！？]++[」』”’）]*+\s*+(?=\S)""")
# Not the end: J. Smith, e.g. this, Mr. Smith.
ABBREVIATION = re.compile(r"(?:^|\s|\.)(?:\w|Mrs?|Ms|Dr|Prof|St|No|Nr|vs|bzw|ca|etc|usw)\.$", re.IGNORECASE)
LONGEST_ABBREVIATION = 8  # characters, with what comes before it


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, each with the space that follows it, so that put together they are the text again."""
    sentences, start = [], 0
    for match in BOUNDARY.finditer(text):
        before = text[max(start, match.end("end") - LONGEST_ABBREVIATION) : match.end("end")] if match["end"] else ""
        if before and (match["next"].islower() or ABBREVIATION.search(before)):
            continue
        sentences.append(text[start : match.end()])
        start = match.end()
    return [*sentences, text[start:]] if text[start:] or not sentences else sentences
