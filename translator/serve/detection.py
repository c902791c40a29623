"""Languages: their names, and which of those served a text is written in (floor 7)."""

from __future__ import annotations

from collections.abc import Sequence

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier


def name_of(code: str) -> str:
    """A language's name in English; of what is no language's code, the code."""
    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


class Detector:
    """Tells apart some languages, those of them that py3langid knows."""

    def __init__(self, languages: Sequence[str]) -> None:
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self.languages = [code for code in languages if code in self._identifier.labels]
        self._identifier.set_languages(self.languages)

    def detect(self, text: str) -> list[dict[str, str | float]]:
        """The languages, the likeliest first, as LibreTranslate tells them: confidence from 0 to 100, together 100."""
        ranked = self._identifier.rank(text) if self.languages else []
        return [{"language": code, "confidence": round(100 * probability, 1)} for code, probability in ranked]
