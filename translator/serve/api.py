"""LibreTranslate's answers and error messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException, Request
from starlette.responses import Response

from translator.config.commands import ServeConfig
from translator.inference.terminology import Terminology
from translator.serve.documents import FORMATS, parse_file
from translator.serve.downloads import MOST_FILES, Downloads, File
from translator.serve.fields import Details, Detection, Fields, FileTranslation, Translation
from translator.serve.keys import Keys
from translator.serve.metrics import Metrics
from translator.serve.service import (
    Answers,
    Service,
    Text,
    Unanswerable,
    served_code,
    texts_of,
    unsupported,
    untouched,
    warnings_by_line,
    warnings_of,
)
from translator.text.html import parse_html
from translator.text.language import name_of

TYPING_PAUSE = 250  # milliseconds without a key after which the page asks for a translation
# Confidence, in percent, from which a text counts as written in the target language already: with it no sentence of Tatoeba's
# English test split counts as German, and 1,647 of the 1,663 German ones do.
SURE = 20
MOST_WARNINGS = 20  # about a file
MOST_PARSED = 2  # files parsed or written at a time: each takes memory


class Api:
    """What each path answers; `details`, `health` and `metrics` are not in LibreTranslate."""

    def __init__(self, service: Service, config: ServeConfig, keys: Keys | None = None) -> None:
        self.service = service
        self.config = config
        self.keys = keys or Keys()
        self.max_alternatives = config.search.most_outputs - 1
        self.metrics = Metrics(service.batcher)
        self.downloads = Downloads(MOST_FILES * config.max_file_bytes, config.keep_files)
        self._files = ThreadPoolExecutor(MOST_PARSED, "files")  # a client that leaves frees no thread before it is done

    async def translate(self, fields: Translation) -> dict[str, Any]:
        """Answer /translate: lists if `q` is a list, HTML if it is HTML."""
        texts, answers, detected = await self._translate(fields)
        ranked = [
            texts_of(text, lines, 1 + fields.alternatives, self.config.search)
            for text, lines in zip(texts, answers, strict=True)]
        by_text: dict[str, list[Any]] = {"translatedText": [texts[0] for texts in ranked]}
        if fields.alternatives:
            by_text["alternatives"] = [texts[1:] for texts in ranked]
        if detected:
            by_text["detectedLanguage"] = detected
        if any(warnings := list(map(warnings_of, answers))):
            by_text["warnings"] = warnings
        return by_text if isinstance(fields.q, list) else {name: values[0] for name, values in by_text.items()}

    async def details(self, fields: Details) -> dict[str, Any]:
        """Answer /details: each text's lines, their sentences, token by token."""
        texts, answers, detected = await self._translate(fields)
        for text, lines in zip(texts, answers, strict=True):
            texts_of(text, lines, 1, self.config.search)  # raises if a line has no translation
        explained = [[[answer.explanation for answer in line] for line in lines] for lines in answers]
        return {"texts": explained} | ({"detectedLanguage": detected} if detected else {})

    async def detect(self, fields: Detection) -> list[dict[str, Any]]:
        """Answer /detect."""
        self._admit(fields, [fields.q])
        return [language for language in await self.service.detect(fields.q) if language["confidence"]]

    async def languages(self) -> list[dict[str, Any]]:
        """Answer /languages: every language, with those into which it is translated."""
        pairs = self.service.translators
        return [{"code": code, "name": name_of(code), "targets": [target for source, target in pairs if source == code]}
                for code in dict.fromkeys(itertools.chain.from_iterable(pairs))]

    async def settings(self) -> dict[str, Any]:
        """Answer /frontend/settings."""
        source, target = ({"code": code, "name": name_of(code)} for code in next(iter(self.service.translators)))
        return {
            "charLimit": self.config.max_characters, "frontendTimeout": TYPING_PAUSE, "apiKeys": bool(self.keys),
            "keyRequired": bool(self.keys), "suggestions": False,
            "filesTranslation": bool(self.config.max_file_bytes),
            "supportedFilesFormat": list(FORMATS) if self.config.max_file_bytes else [],
            "alternativesLimit": self.max_alternatives, "textsLimit": self.config.max_texts,
            "language": {"source": source, "target": target},
            "models": [
                {"source": source, "target": target, "run": about.run, "parameters": about.parameters, "bleu": about.bleu,
                 "report": (source, target) in self.reports()}
                for (source, target), about in self.service.about.items()]}

    def reports(self) -> dict[tuple[str, str], Path]:
        """Return each language pair's report; none where a key is needed, since they quote test data."""
        return {} if self.keys else {pair: about.report for pair, about in self.service.about.items() if about.report}

    async def health(self) -> dict[str, Any]:
        """Answer /health."""
        batcher = self.service.batcher
        return {
            "status": "ok", "waiting": batcher.waiting, "sentences": batcher.sentences_done, "batches": batcher.batches_done}

    async def measurements(self, request: Request) -> Response:
        """Answer /metrics; with a key as api_key or as a bearer token, where keys are required."""
        scheme, _, token = _utf8(request.headers.get("authorization", "")).partition(" ")
        self.keys.of(token.strip() if scheme.lower() == "bearer" else request.query_params.get("api_key", ""))
        return self.metrics.response()

    async def translate_file(self, fields: FileTranslation, request: Request) -> dict[str, Any]:
        """Answer /translate_file: the address of the translated file."""
        self.keys.of(fields.api_key)
        if not self.config.max_file_bytes:
            raise HTTPException(403, "Translation of files is disabled on this server.")
        name, content = _plain_name(fields.file.filename or ""), await fields.file.read()
        await fields.file.close()
        run = asyncio.get_running_loop().run_in_executor
        contents = await run(self._files, parse_file, name, content, self.config.max_file_characters)
        self._admit(fields, contents.plain, self.config.max_file_characters)
        source, target = self._served(fields.source), self._served(fields.target)
        if detected := source == "auto":
            source = (await self._language_of("\n".join(contents.plain)[: self.config.max_characters], target))["language"]
        if detected and source == target:
            answers = list(map(untouched, contents.texts))
        else:
            answers = await self.service.translate(contents.texts, [source] * len(contents.texts), target)
        texts = [texts_of(text, lines, 1, self.config.search)[0] for text, lines in zip(contents.texts, answers, strict=True)]
        path = PurePosixPath(name)
        file = File(f"{path.stem}.{target}{path.suffix}", await run(self._files, contents.write, texts))
        url = request.url_for("download", token=self.downloads.add(file), name=quote(file.name))
        about = itertools.chain.from_iterable(map(warnings_by_line, contents.texts, answers))
        warnings = list(dict.fromkeys([*contents.warnings, *about]))
        if len(warnings) > MOST_WARNINGS:
            warnings[MOST_WARNINGS:] = [f"{len(warnings) - MOST_WARNINGS} more warnings"]
        return {"translatedFileUrl": str(url)} | ({"warnings": warnings} if warnings else {})

    async def _translate(self, fields: Translation) -> tuple[Sequence[Text], list[Answers], list[dict[str, Any]] | None]:
        """Return the texts, the answers to each, and the languages detected if `source` is auto."""
        self._admit(fields, fields.texts)
        others = fields.others if isinstance(fields, Details) else None
        self._require_possible(fields, ("text", "html") if others is None else ("text",))
        texts: Sequence[Text] = list(map(parse_html, fields.texts)) if fields.format == "html" else fields.texts
        source, target = self._served(fields.source), self._served(fields.target)
        detected, sources = None, [source] * len(texts)
        if source == "auto":
            detected = [await self._language_of(text if isinstance(text, str) else text.plain, target) for text in texts]
            sources = [language["language"] for language in detected]
        foreign = [i for i, language in enumerate(sources) if detected is None or language != target]
        translated = await self.service.translate(
            [texts[i] for i in foreign], [sources[i] for i in foreign], target, 1 + fields.alternatives, others,
            prefixes=[fields.prefixes[i] for i in foreign],
            terminology=Terminology(fields.terminology) if fields.terminology else None)
        answers = dict(zip(foreign, translated, strict=True))
        return texts, [answers.get(i) or untouched(text) for i, text in enumerate(texts)], detected

    async def _language_of(self, text: str, target: str) -> dict[str, Any]:
        """Return the target if the text clearly is in it, else the likeliest of its sources, or the only one."""
        sources = [source for source, other in self.service.translators if other == target]
        if not sources:
            raise unsupported(target, sorted({other for _, other in self.service.translators}))
        ranked = await self.service.detect(text)
        if ranked[0]["language"] == target and ranked[0]["confidence"] >= SURE:
            return ranked[0]
        for language in ranked:
            if language["language"] in sources:
                return language
        if len(sources) > 1:
            raise Unanswerable(f"the language cannot be detected: name the source, one of {', '.join(sources)}")
        return {"language": sources[0], "confidence": 0.0}

    def _served(self, code: str) -> str:
        return served_code(code, self.service.codes)

    def _require_possible(self, fields: Translation, formats: Sequence[str]) -> None:
        if fields.alternatives > self.max_alternatives:
            raise Unanswerable(f"Invalid request: alternatives parameter must be <= {self.max_alternatives}")
        if fields.format not in formats:
            raise Unanswerable(f"{fields.format} format is not supported")
        if fields.format == "html" and any(fields.prefixes):
            raise Unanswerable("Invalid request: prefix parameter: needs format=text")
        if len(fields.prefixes) != len(fields.texts):
            raise Unanswerable("Invalid request: prefix parameter: must be a text, or a list as long as q")
        if sum(map(len, itertools.chain(fields.prefixes, *fields.terminology.items()))) > self.config.max_characters:
            raise Unanswerable(f"Invalid request: prefix and terminology exceed text limit ({self.config.max_characters})")

    def _admit(self, fields: Fields, texts: Sequence[str], max_characters: int | None = None) -> None:
        """Count a request. Raises HTTPException or Unanswerable for a wrong key, and for more than is allowed."""
        key = self.keys.of(fields.api_key)
        size = sum(map(len, texts))
        most = min(self.config.max_characters if max_characters is None else max_characters, key.most_characters)
        for amount, limit in ((0 if max_characters else len(texts), self.config.max_texts), (size, most)):
            if amount > limit:
                raise Unanswerable(f"Invalid request: request ({amount}) exceeds text limit ({limit})")
        key.charge(size)


def _utf8(header: str) -> str:
    """Return a header, which Starlette reads as Latin-1, as its client meant it."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


def _plain_name(name: str) -> str:
    """Return the name of a file without folders."""
    return PurePosixPath(name.replace("\\", "/")).name.encode(errors="replace").decode()
