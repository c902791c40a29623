"""The reference of the API: what each path takes and answers, as OpenAPI and as a page with examples."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from starlette.responses import JSONResponse, Response

from translator.serve.api import Api
from translator.serve.documents import FORMATS
from translator.serve.fields import Details, Detection, Fields, FileTranslation, Translation

JSON, FORM, FILE = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
TEXT = "I like tea."
WARNING = "this looks like French; this model reads English"
STATUSES = {
    400: "A field is missing, wrong or too long; the language is not served; no API key",
    403: "Wrong API key, origin or Host",
    404: "Unknown path, or a file that is no longer kept",
    405: "Wrong method; Allow has the right one",
    413: "The body is too large",
    429: "A limit of the API key; Retry-After has the seconds to wait",
    500: "The model or the server failed",
    503: "Too much waits already; Retry-After has the seconds to wait",
    504: "The answer took too long",
}


@dataclass(frozen=True)
class Operation:
    """A path of the API: its fields, with an example of them, and an example of its answer."""

    summary: str
    answer: Any
    fields: type[Fields] | None = None
    example: dict[str, Any] | None = None
    kind: str = JSON  # of the answer


def _operations(source: str, target: str) -> dict[str, Operation]:
    asked = {"q": TEXT, "source": source, "target": target}
    tea = {"text": "Tea", "log_probability": -0.1, "attention": [0.9, 0.1]}
    return {
        "/translate": Operation(
            "Translate a text or a list of texts; warnings only where there are any",
            {"translatedText": "Ich mag Tee.", "warnings": [WARNING]}, Translation, asked),
        "/translate_file": Operation(
            f"Translate a file ({' '.join(FORMATS)}), and return the address to download it from, once",
            {"translatedFileUrl": f"http://.../download_file/.../letter.{target}.docx", "warnings": [f"{TEXT!r}: {WARNING}"]},
            FileTranslation,
            {"file": "letter.docx", "source": source, "target": target}),
        "/download_file/{token}/{name}": Operation("Return a translated file, which is then removed", "...", kind="*/*"),
        "/detect": Operation(
            "Detect the language of a text", [{"language": source, "confidence": 99.0}], Detection, {"q": TEXT}),
        "/languages": Operation("List the languages", [{"code": source, "name": "...", "targets": [target]}]),
        "/details": Operation(
            "Translate, with scores, tokens and attention of each sentence",
            {"texts": [[[{"source": ["I", " like"], "translations": [{"text": "...", "score": -0.2, "tokens": [tea]}],
                         "warnings": [WARNING]}]]]},
            Details, asked),
        "/frontend/settings": Operation("Return limits and settings", {"charLimit": 10_000, "keyRequired": False}),
        "/health": Operation("Say that the server works", {"status": "ok", "waiting": 0, "sentences": 9, "batches": 2}),
        "/metrics": Operation("Return metrics for Prometheus", "translator_waiting_sentences 0.0\n", kind="text/plain")}


def described(path: str, api: Api) -> dict[str, Any]:
    """Return the arguments of `add_api_route` that describe a path."""
    operation = _operations(*next(iter(api.service.translators)))[path]
    extra: dict[str, Any] = {}
    if operation.fields is not None:
        example = (operation.example or {}) | ({"api_key": "YOUR-KEY"} if api.keys else {})
        schema = operation.fields.model_json_schema()
        if alternatives := schema["properties"].get("alternatives"):
            alternatives |= {"maximum": api.max_alternatives,
                             "description": f"{alternatives['description']}, at most {api.max_alternatives}"}
        kinds = [FILE] if operation.fields is FileTranslation else [JSON, FORM]
        extra["requestBody"] = {"required": True, "content": {kind: {"schema": schema, "example": example} for kind in kinds}}
    answer = {"description": "Answer", "content": {operation.kind: {"example": operation.answer}}}
    errors = {status: {"description": text} for status, text in STATUSES.items()} if operation.fields else {}
    name = path.split("/{")[0].strip("/").replace("/", "_")
    return {
        "summary": operation.summary, "operation_id": name, "responses": {200: answer} | errors, "openapi_extra": extra,
        "response_class": Response if operation.kind != JSON else JSONResponse}


def reference_page(spec: dict[str, Any], url: str) -> str:
    """Return the reference as HTML. `url`: the server's, as its reader knows it."""
    operations = []
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            kind = next(iter(content), None)
            body = content[kind] if kind else {}
            answers = operation["responses"]["200"]["content"]
            operations.append({
                "path": path, "method": method.upper(), "summary": operation["summary"],
                "fields": _rows(body.get("schema", {})), "answer": _pretty(next(iter(answers.values()))["example"]),
                "snippets": _snippets(url.rstrip("/") + path, kind, body.get("example", {})) if "{" not in path else {}})
    return _template().render(operations=operations, statuses=STATUSES, version=spec["info"]["version"])


@cache
def _template() -> Template:
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        Path(__file__).with_name("reference.html").read_text(encoding="utf-8"))


def _rows(schema: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """Return name, whether it is required, and description of each field, the required ones first."""
    required = schema.get("required", [])
    rows = [(name, name in required, field["description"]) for name, field in schema.get("properties", {}).items()]
    return sorted(rows, key=lambda row: not row[1])


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _snippets(url: str, kind: str | None, example: dict[str, Any]) -> dict[str, str]:
    """Return the same request in three languages."""
    if kind is None:
        return {"curl": f"curl {url}", "Python": f'import requests\n\nprint(requests.get("{url}").text)',
                "JavaScript": f'const response = await fetch("{url}");\nconsole.log(await response.text());'}
    if kind == FILE:
        return _file_snippets(url, example)
    body = json.dumps(example, ensure_ascii=False)
    return {
        "curl": f"curl {url} \\\n  -H 'Content-Type: {JSON}' \\\n  -d {shlex.quote(body)}",
        "Python": f'import requests\n\nresponse = requests.post("{url}", json={body})\nprint(response.json())',
        "JavaScript": f'const response = await fetch("{url}", {{\n  method: "POST",\n'
                      f'  headers: {{"Content-Type": "{JSON}"}},\n  body: JSON.stringify({body}),\n}});\n'
                      "console.log(await response.json());"}


def _file_snippets(url: str, example: dict[str, Any]) -> dict[str, str]:
    name, others = example["file"], {field: value for field, value in example.items() if field != "file"}
    given = " ".join(f"-F {field}={value}" for field, value in others.items())
    appended = "".join(f'form.append("{field}", "{value}");\n' for field, value in others.items())
    return {
        "curl": f"curl {url} \\\n  -F file=@{name} {given}",
        "Python": f'import requests\n\nwith open("{name}", "rb") as file:\n'
                  f'    response = requests.post("{url}", files={{"file": file}}, data={json.dumps(others)})\n'
                  'translated = requests.get(response.json()["translatedFileUrl"]).content',
        "JavaScript": "const [file] = document.querySelector('input[type=file]').files;\n"
                      'const form = new FormData();\nform.append("file", file);\n'
                      f'{appended}const response = await fetch("{url}", {{method: "POST", body: form}});\n'
                      "console.log((await response.json()).translatedFileUrl);"}
