"""Languages: their names and codes, and which of them a text is written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier


def name_of(code: str) -> str:
    """A language's name in English; of what is no language's code, the code."""
    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def served_code(code: str, languages: Sequence[str]) -> str:
    """Return the language of those served that a code such as `EN` or `en-US` asks for; the code itself where there is none.

    Subtags are dropped from the end until one fits (RFC 4647, section 3.4).
    """
    if code in languages:
        return code
    known = {_tag(language): language for language in languages}
    subtags = _tag(code).split("-")
    lengths = range(len(subtags), 0, -1)
    return next((known[tag] for length in lengths if (tag := "-".join(subtags[:length])) in known), code)


def _tag(code: str) -> str:
    return code.lower().replace("_", "-")


class Detector:
    """Tell all languages that py3langid knows apart."""

    def __init__(self, languages: Sequence[str]) -> None:
        """`languages`: those served, for whose codes, such as `en-US`, its own ones stand."""
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._served = {_tag(language).split("-")[0]: language for language in languages}

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return the languages, the likeliest first, as LibreTranslate does: confidence from 0 to 100, together 100."""
        return [
            {"language": self._served.get(code, code), "confidence": round(100 * float(probability), 1)}
            for code, probability in self._identifier.rank(text)]
