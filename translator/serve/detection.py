"""Names and codes of languages, and detection of a text's language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier


def name_of(code: str) -> str:
    """Return a language's name in English, or the code itself if it is not a language's."""
    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def served_code(code: str, languages: Sequence[str]) -> str:
    """Return the served language that a code such as `EN` or `en-US` asks for, or the code itself if there is none.

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
    """Detect any language that py3langid knows."""

    def __init__(self, languages: Sequence[str]) -> None:
        """`languages`: the codes served, such as `en-US`, to use in place of py3langid's own."""
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._served = {_tag(language).split("-")[0]: language for language in languages}

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return all languages, the likeliest first, as LibreTranslate does: confidences in percent, which sum to 100."""
        return [
            {"language": self._served.get(code, code), "confidence": round(100 * float(probability), 1)}
            for code, probability in self._identifier.rank(text)]
