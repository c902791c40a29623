"""What each request to the API asks for and is answered, as values that JSON can hold (floor 7)."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

from fastapi import HTTPException

from translator.commands import ServeConfig
from translator.serve.detection import name_of
from translator.serve.fields import Detection, Keyed, Translation
from translator.serve.service import Answer, Service, Unanswerable, texts_of

AUTO = "auto"
# Milliseconds without a key after which a page may take a text for written.
PAUSE = 250


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
        return await self.service.detect(fields.q)

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
        detected = None
        if fields.source == AUTO:
            detected = [await self._language_of(text, fields.target) for text in fields.texts]
        sources = [language["language"] for language in detected] if detected else [fields.source] * len(fields.texts)
        answers = await self.service.translate(
            fields.texts, sources, fields.target, n_best=1 + fields.alternatives, explained=explained)
        return answers, detected

    async def _language_of(self, text: str, target: str) -> dict[str, Any]:
        """The likeliest of the languages that are translated into the target; where none is told, the only one there is."""
        for language in await self.service.detect(text):
            if (language["language"], target) in self.service.translators:
                return language
        sources = [source for source, other in self.service.translators if other == target]
        if not sources:
            raise Unanswerable(f"{target} is not supported")
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
