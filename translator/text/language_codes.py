"""Compare language codes of several standards, such as de, deu_Latn and de_DE, by the tables of CLDR."""

from __future__ import annotations

import re
from typing import NamedTuple

SAME = {"nb": "no"}  # CLDR has Norwegian in either


class LanguageCode(NamedTuple):
    """The parts of a code; empty where it leaves one out."""

    language: str  # ISO 639-1, or 639-3 where that has none
    script: str = ""
    territory: str = ""
    variant: str = ""


def parse_code(name: str) -> LanguageCode:
    """Return the parts of a code such as deu_Latn. A name that is no code, such as `answer`, is a language of its own."""
    from babel.core import get_global  # takes a while

    first, *parts = re.split("[-_]", name)
    replacement = get_global("language_aliases").get(first.lower(), first.lower())  # fa_AF for prs
    language, *implied = replacement.split("_")
    parts = [*implied, *parts]
    script = next((part.title() for part in parts if len(part) == 4 and part.isalpha()), "")
    territory = next((part.upper() for part in parts if re.fullmatch(r"[A-Za-z]{2}|\d{3}", part)), "")
    others = [part for part in parts if part.title() != script and part.upper() != territory]
    return LanguageCode(SAME.get(language, language), script, territory, "_".join(others))


def spellings(name: str) -> list[str]:
    """Return the codes that a language may have: of ISO 639-1 and 639-3, and of its dialects."""
    from babel.core import get_global

    language = parse_code(name).language
    aliases = [*get_global("language_aliases"), *SAME]
    return [language, *(alias for alias in aliases if parse_code(alias).language == language)]


def closeness(wanted: str, other: str) -> int | None:
    """Return how close a code is to the one wanted, larger for closer; None for another language or script."""
    exact, found = _completed(parse_code(wanted)), parse_code(other)
    if (exact.language, exact.script) != (found.language, _completed(found).script):
        return None
    return 2 * (found.territory in ("", exact.territory)) + (found.variant == exact.variant)


def _completed(code: LanguageCode) -> LanguageCode:
    """Return a code with its likeliest script and territory, where it names none."""
    from babel.core import get_global

    likely = get_global("likely_subtags")
    keys = ("_".join(filter(None, parts)) for parts in (code[:3], code[:2], (code.language, code.territory), code[:1]))
    full = parse_code(next((likely[key] for key in keys if key in likely), code.language))
    return code._replace(script=code.script or full.script, territory=code.territory or full.territory)
