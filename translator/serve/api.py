"""What each request to the API asks for and is answered, as values that JSON can hold."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

from fastapi import HTTPException

from translator.config.commands import ServeConfig
from translator.serve.detection import name_of, served_code
from translator.serve.fields import Detection, Keyed, Translation
from translator.serve.service import Answer, Service, Unanswerable, texts_of, untouched

AUTO = "auto"
# Milliseconds without a key after which a page may take a text for written.
PAUSE = 250
# Confidence, in percent, from which a text counts as written in the target language already. So none of 1,663 English sentences
# (Tatoeba's test split) counts as German, nor any of their 2,000 commonest words except two, and 1,647 German ones do.
SURE = 20


class Api:
    """LibreTranslate's answers, error messages included; `details` and `health` are our own."""

    def __init__(self, service: Service, config: ServeConfig, keys: Sequence[str] = ()) -> None:
        """With keys, only who has one is answered."""
        self.service = service
        self.config = config
        self.keys = [key.encode() for key in keys]
        self.most_alternatives = config.search.most_outputs - 1

    async def translate(self, fields: Translation) -> dict[str, Any]:
        """/translate"""
        answers, detected = await self._ask(fields, explained=False)
        ranked = [
            texts_of(text, lines, 1 + fields.alternatives, self.config.search)
            for text, lines in zip(fields.texts, answers, strict=True)]
        whole: dict[str, list[Any]] = {"translatedText": [texts[0] for texts in ranked]}
        if fields.alternatives:
            whole["alternatives"] = [texts[1:] for texts in ranked]
        if detected:
            whole["detectedLanguage"] = detected
        return whole if isinstance(fields.q, list) else {name: of_texts[0] for name, of_texts in whole.items()}

    async def details(self, fields: Translation) -> dict[str, Any]:
        """/details: of each text the lines, of each line the sentences, token by token."""
        answers, detected = await self._ask(fields, explained=True)
        for text, lines in zip(fields.texts, answers, strict=True):
            texts_of(text, lines, 1, self.config.search)  # or the reason why there is none
        texts = [[[answer.explanation for answer in line] for line in lines] for lines in answers]
        return {"texts": texts} | ({"detectedLanguage": detected} if detected else {})

    async def detect(self, fields: Detection) -> list[dict[str, Any]]:
        """/detect"""
        self._require_key(fields)
        self._require_limits([fields.q])
        return [language for language in await self.service.detect(fields.q) if language["confidence"]]

    @property
    def settings(self) -> dict[str, Any]:
        """/frontend/settings"""
        source, target = ({"code": code, "name": name_of(code)} for code in next(iter(self.service.translators)))
        return {
            "charLimit": self.config.max_characters, "frontendTimeout": PAUSE, "apiKeys": bool(self.keys),
            "keyRequired": bool(self.keys), "suggestions": False, "filesTranslation": False, "supportedFilesFormat": [],
            "alternativesLimit": self.most_alternatives,
            "language": {"source": source, "target": target}}

    @property
    def health(self) -> dict[str, Any]:
        """/health"""
        batcher = self.service.batcher
        return {"status": "ok", "waiting": batcher.waiting, "sentences": batcher.units_done, "batches": batcher.batches_done}

    async def _ask(
        self, fields: Translation, *, explained: bool
    ) -> tuple[list[list[list[Answer]]], list[dict[str, Any]] | None]:
        """The answers to each text, and the languages detected if they were to be."""
        self._require_key(fields)
        self._require_limits(fields.texts)
        if fields.alternatives > self.most_alternatives:
            raise Unanswerable(f"Invalid request: alternatives parameter must be <= {self.most_alternatives}")
        if fields.format != "text":
            raise Unanswerable(f"{fields.format} format is not supported")
        source, target = (served_code(code, self.service.codes) for code in (fields.source, fields.target))
        how: dict[str, Any] = {"n_best": 1 + fields.alternatives, "explained": explained}
        if source != AUTO:
            return await self.service.translate(fields.texts, [source] * len(fields.texts), target, **how), None
        detected = [await self._language_of(text, target) for text in fields.texts]
        sources = [language["language"] for language in detected]
        foreign = [number for number, source in enumerate(sources) if source != target]
        translated = await self.service.translate(
            [fields.texts[number] for number in foreign], [sources[number] for number in foreign], target, **how)
        answers = dict(zip(foreign, translated, strict=True))
        return [answers.get(number) or untouched(text) for number, text in enumerate(fields.texts)], detected

    async def _language_of(self, text: str, target: str) -> dict[str, Any]:
        """The target where the text clearly is in it, or the likeliest of the languages that are translated into it.

        Where no such language can be detected, the only one there is.
        """
        sources = [source for source, other in self.service.translators if other == target]
        if not sources:
            raise Unanswerable(f"{target} is not supported")
        ranked = await self.service.detect(text)
        if ranked[0]["language"] == target and ranked[0]["confidence"] >= SURE:
            return ranked[0]
        for language in ranked:
            if language["language"] in sources:
                return language
        if len(sources) > 1:
            raise Unanswerable(f"the language cannot be detected: name the source, one of {', '.join(sources)}")
        return {"language": sources[0], "confidence": 0.0}

    def _require_key(self, fields: Keyed) -> None:
        if self.keys and not fields.api_key:
            raise HTTPException(400, "Please contact the server operator to get an API key")
        if self.keys and not any(hmac.compare_digest(fields.api_key.encode(), key) for key in self.keys):
            raise HTTPException(403, "Invalid API key")

    def _require_limits(self, texts: Sequence[str]) -> None:
        for size, limit in ((len(texts), self.config.max_texts), (sum(map(len, texts)), self.config.max_characters)):
            if size > limit:
                raise Unanswerable(f"Invalid request: request ({size}) exceeds text limit ({limit})")
