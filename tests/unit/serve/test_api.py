"""Served models: unmodified clients get what the command line gives, whatever else is asked for at the time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import io
import json
import math
import os
import re
import resource
import signal
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import assert_user_error
from tests.support.configurations import composed, search_config
from tests.support.corpora import PAIRS
from tests.support.server import Server, serving, until
from translator.config.building import from_hydra
from translator.config.commands import ServeConfig
from translator.inference.translation import Translation
from translator.runtime.errors import UserError

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("libretranslatepy", reason="a client is not installed: the extra `dev` has it")

from fastapi import UploadFile
from libretranslatepy import LibreTranslateAPI

from translator.serve import api, batcher, connections
from translator.serve.api import Api
from translator.serve.application import create_app
from translator.serve.batcher import Batcher, Full
from translator.serve.downloads import Downloads, File, NoRoom
from translator.serve.service import Answer, Detector, Service, Unanswerable, served_code, texts_of

TEXTS = [source for source, _ in PAIRS[::17]]


# The batcher: sentences are a kind and a length, and their own translations


class Recorder:
    """Translates by giving back; what it is given waits while the gate is shut."""

    def __init__(self, **options: Any) -> None:
        self.batches: list[list[int]] = []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.batcher: Batcher[tuple[str, int]] = Batcher(
            self.translate, kind=lambda sentence: sentence[0], size=lambda sentence: sentence[1],
            **{"batch_tokens": 100, "max_waiting": 1000} | options)

    def translate(self, sentences: list[tuple[str, int]]) -> list[str]:
        self.batches.append([size for _, size in sentences])
        self.begun.set()
        self.gate.wait()
        if sentences[0][0] == "bad":
            raise ValueError("broken")
        return [f"{kind}{size}" for kind, size in sentences]

    def submit(self, kind: str, sizes: list[int]) -> asyncio.Future[list[str]]:
        return asyncio.ensure_future(self.batcher.submit([(kind, size) for size in sizes]))

    async def begin(self, kind: str, sizes: list[int]) -> asyncio.Future[list[str]]:
        """Submit, and wait until the first batch is in work."""
        request = self.submit(kind, sizes)
        await asyncio.sleep(0)
        await asyncio.to_thread(self.begun.wait)
        return request

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(work())
        finally:
            self.gate.set()
            self.batcher.close()


def test_what_waits_together_goes_together():
    recorder = Recorder()

    async def work() -> None:
        requests = [await recorder.begin("a", [5]), *(recorder.submit("a", [n]) for n in (7, 6, 8))]
        await asyncio.sleep(0)
        recorder.gate.set()
        assert await asyncio.gather(*requests) == [["a5"], ["a7"], ["a6"], ["a8"]]
        assert recorder.batches == [[5], [7, 6, 8]]

    recorder.run(work)


def test_an_order_of_many_does_not_hold_up_one_of_few():
    recorder = Recorder()

    async def work() -> None:
        many = await recorder.begin("a", [10] * 500)
        few = [recorder.submit(kind, [11]) for kind in "ab"]
        await asyncio.sleep(0)
        recorder.gate.set()
        assert await asyncio.gather(*few) == [["a11"], ["b11"]]
        assert not many.done()
        assert len(await many) == 500
        assert all(batch in recorder.batches[:4] for batch in ([11], [10] * 10))
        assert any(11 in batch and 10 in batch for batch in recorder.batches[:4])  # the same kind goes along

    recorder.run(work)


def test_a_stream_of_short_requests_does_not_starve_a_long_one():
    recorder = Recorder(batch_tokens=1)
    recorder.gate.set()

    async def work() -> None:
        long = recorder.submit("long", [90] * 5)
        for _ in range(20):
            await recorder.submit("short", [1])
        assert long.done()

    recorder.run(work)


def test_what_nobody_waits_for_is_given_up():
    recorder = Recorder()

    async def work() -> None:
        in_work = await recorder.begin("a", [9])
        left = recorder.submit("a", [90] * 9)
        await asyncio.sleep(0)
        assert recorder.batcher.waiting == 9
        for request in (in_work, left):
            request.cancel()
        await asyncio.sleep(0)
        assert recorder.batcher.waiting == 0
        recorder.gate.set()
        assert await recorder.submit("a", [3]) == ["a3"]
        assert recorder.batches == [[9], [3]]

    recorder.run(work)


def test_an_error_is_told_to_those_it_concerns_alone():
    recorder = Recorder(batch_tokens=10)
    recorder.gate.set()

    async def work() -> None:
        bad, good = recorder.submit("bad", [5] * 9), recorder.submit("good", [5] * 9)
        with pytest.raises(ValueError, match="broken"):
            await bad
        assert await good == ["good5"] * 9

    recorder.run(work)


def test_more_than_may_wait_is_refused():
    recorder = Recorder(max_waiting=2)

    async def work() -> None:
        await recorder.begin("a", [1])
        waiting = recorder.submit("a", [1, 1])
        with pytest.raises(Full):
            await recorder.submit("a", [1])
        waiting.cancel()  # what is cancelled waits no longer
        await asyncio.sleep(0)
        recorder.gate.set()
        await recorder.submit("a", [1])

    recorder.run(work)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(1, 150), min_size=1, max_size=20)), max_size=12))
def test_every_unit_gets_its_own_answer_in_batches_within_bounds(orders):
    recorder = Recorder()
    recorder.gate.set()

    async def work() -> None:
        requests = [recorder.submit(kind, sizes) for kind, sizes in orders]
        for (kind, sizes), request in zip(orders, requests, strict=True):
            assert await request == [f"{kind}{size}" for size in sizes]

    recorder.run(work)
    assert sorted(unit for batch in recorder.batches for unit in batch) == sorted(u for _, units in orders for u in units)
    assert all(len(batch) == 1 or len(batch) * max(batch) <= 100 for batch in recorder.batches)
    assert all(max(batch) <= max(batcher.SHORT, 2 * batch[0]) for batch in recorder.batches)


# The server, in a process of its own


@pytest.fixture(scope="session")
def server(trained_folder, reverse_folder, tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, f"run=[{trained_folder},{reverse_folder}]", "max_characters=3000", "max_texts=50") as running:
        yield running
        assert "Traceback" not in running.said


@pytest.fixture(scope="session")
def by_command_line(trained_folder, script) -> list[str]:
    """Of each of TEXTS the three best translations, on a line, parted by tabs."""
    result = script("translate", f"run={trained_folder}", "device=cpu", "search.n_best=3", stdin="\n".join(TEXTS).encode())
    return result.stdout.decode().splitlines()


def test_a_client_gets_what_the_command_line_gives(server, by_command_line):
    client = LibreTranslateAPI(server.url)
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]}, {"code": "de", "name": "German", "targets": ["en"]}]
    best = [line.split("\t")[0] for line in by_command_line]
    assert [client.translate(text, "en", "de") for text in TEXTS] == best
    assert client.translate("\n\n".join(TEXTS), "en", "de") == "\n\n".join(best)
    detected = client.detect(TEXTS[0])
    assert detected[0]["language"] == "en"
    assert sum(language["confidence"] for language in detected) == pytest.approx(100, abs=3)  # those below 1 are left out


def test_arrays_alternatives_and_detection(server, by_command_line):
    ranked = [line.split("\t") for line in by_command_line]
    status, answer = server.post(
        "/translate", {"q": TEXTS, "source": "auto", "target": "de", "alternatives": 2, "api_key": None, "format": "text"})
    assert status == 200
    assert answer["translatedText"] == [line[0] for line in ranked]
    assert answer["alternatives"] == [line[1:] for line in ranked]
    assert {language["language"] for language in answer["detectedLanguage"]} == {"en"}
    status, answer = server.post("/translate", {"q": TEXTS[0], "source": "en", "target": "de", "alternatives": 2})
    assert answer == {"translatedText": ranked[0][0], "alternatives": ranked[0][1:]}


@pytest.mark.parametrize(("directions", "found"), [
    ([("english", "german")], "english"), ([("english", "german"), ("dutch", "german")], "source, one of english, dutch"),
    ([("english", "dutch")], "german is not supported")])
def test_languages_of_names_that_no_detector_knows(directions, found):
    class Undetected:
        batcher = SimpleNamespace(waiting=0, sentences_done=0, batches_done=0)
        translators = dict.fromkeys(directions)
        codes = sorted({code for pair in directions for code in pair})

        async def detect(self, text: str) -> list[Any]:
            return Detector([source for source, _ in directions]).detect(text)

    api = Api(Undetected(), from_hydra(ServeConfig, composed("serve")))
    if found == "english":
        assert asyncio.run(api._language_of("A dog.", "german"))["language"] == found
    else:
        with pytest.raises(Unanswerable, match=found):
            asyncio.run(api._language_of("A dog.", "german"))


def test_a_text_in_the_target_language_is_returned_as_it_is(server):
    german = "Wo ist der Bahnhof?\r\n\n  Der Hund sieht zwei Häuser.\n"
    for path in ("/translate", "/details"):
        status, answer = server.post(path, {"q": [german, TEXTS[0]], "source": "auto", "target": "de", "alternatives": 1})
        assert status == 200
        assert [language["language"] for language in answer["detectedLanguage"]] == ["de", "en"]
        if path == "/translate":
            assert answer["translatedText"][0] == german
            assert answer["alternatives"][0] == []
            assert answer["translatedText"][1] == server.post("/translate", WHOLE | {"q": TEXTS[0]})[1]["translatedText"]
        else:
            lines = ["".join(sentence["translations"][0]["text"] for sentence in line) for line in answer["texts"][0]]
            assert lines == [line.removesuffix("\r") for line in german.split("\n")]


def test_detection_ranks_languages_that_are_not_served(server):
    for text, language in (("Où est la gare, s'il vous plaît ?", "fr"), ("Wo ist der Bahnhof?", "de")):
        first, *others = server.post("/detect", {"q": text})[1]
        assert first["language"] == language
        assert first["confidence"] > 50 > max(other["confidence"] for other in others)
    assert all(language["confidence"] < 50 for language in server.post("/detect", {"q": "Tom"})[1])  # as it may be any


@pytest.mark.parametrize(("code", "served", "expected"), [
    ("EN", ["de", "en"], "en"), ("en-US", ["de", "en"], "en"), ("de_at", ["de", "en"], "de"), ("EN_us", ["en-US"], "en-US"),
    ("zh-Hant-TW", ["zh", "zh-Hant"], "zh-Hant"), ("eng", ["en"], "eng"), ("fr-FR", ["en"], "fr-FR"), ("", ["en"], "")])
def test_codes_of_languages_are_normalised(code, served, expected):
    assert served_code(code, served) == expected


def test_a_banned_phrase_where_two_sentences_meet_is_told_of():
    line = [Answer(Translation((first, second)), None) for first, second in (("A red", "A"), ("ball.", "dog."))]
    search = search_config(banned=("red ball",), beam_size=2)
    with pytest.raises(Unanswerable, match="line 2: .* where two of them meet"):
        texts_of("x\nx y", [line[:1], line], 1, search)
    assert texts_of("x y", [line], 2, dataclasses.replace(search, banned=("dog",))) == ["A red ball."]


def test_line_breaks_and_spaces_stay(server):
    status, answer = server.post("/translate", {"q": f"\n{TEXTS[0]}\r\n\r\n {TEXTS[1]}\n", "source": "en", "target": "de"})
    lines = answer["translatedText"].split("\n")
    assert status == 200
    assert [bool(line.strip()) for line in lines] == [False, True, False, True, False]
    assert lines[1].endswith("\r")
    assert lines[2] == "\r"
    assert re.match(r" \S", lines[3])
    assert server.post("/translate", {"q": "  ", "source": "en", "target": "de"}) == (200, {"translatedText": "  "})


def test_forms_and_addresses_bring_fields_too(server):
    expected = server.post("/translate", {"q": TEXTS[0], "source": "en", "target": "de"})
    encoded = urllib.parse.urlencode({"q": TEXTS[0], "source": "en", "target": "de"})
    form = "application/x-www-form-urlencoded"
    assert server.post("/translate", encoded.encode(), form) == expected
    assert server.post(f"/translate?{encoded}", b"", form) == expected
    several = urllib.parse.urlencode([("q", text) for text in TEXTS[:2]] + [("source", "en"), ("target", "de")])
    assert server.post("/translate", several.encode(), form) == server.post(
        "/translate", {"q": TEXTS[:2], "source": "en", "target": "de"})
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in urllib.parse.parse_qsl(encoded)) + "--x--\r\n"
    assert server.post("/translate", parts.encode(), "multipart/form-data; boundary=x") == expected


def test_a_text_in_another_language_is_warned_of(server):
    french, warning = "Demain matin, nous irons au marché.", "this looks like French; this model reads English"
    fields = {"q": [TEXTS[0], f"{french}\n{french}"], "source": "en", "target": "de"}
    assert server.post("/translate", fields)[1]["warnings"] == [[], [warning]]
    assert server.post("/translate", fields | {"q": french})[1]["warnings"] == [warning]
    [[[known]], [[foreign], _]] = server.post("/details", fields)[1]["texts"]
    assert (known["warnings"], foreign["warnings"]) == ([], [warning])


POST = (
    '<p><span class="h-card"><a href="https://x.example/@tom">@<span>tom</span></a></span> <b>She sees two houses.</b><br />'
    'The dog wants <a href="/a?b=1&amp;c=2">red apples</a>.</p>\n<pre>She &amp; he</pre>')


def test_html_is_translated_and_its_tags_stay(server, by_command_line):
    def ask(q: str | list[str], **fields: object) -> Any:
        status, answer = server.post("/translate", {"q": q, "source": "en", "target": "de", "format": "html"} | fields)
        assert status == 200, answer
        return answer

    best = [line.split("\t")[0] for line in by_command_line]
    page = "".join(f"<li class='x'>{text}</li>\n" for text in TEXTS)
    assert ask(page)["translatedText"] == "".join(f"<li class='x'>{text}</li>\n" for text in best)
    assert ask([page, TEXTS[0], "<hr>"])["translatedText"] == [ask(page)["translatedText"], best[0], "<hr>"]
    post = ask(POST)["translatedText"]
    assert sorted(re.findall("<.*?>", post)) == sorted(re.findall("<.*?>", POST))
    assert post.startswith(POST[: POST.index(" <b>")])
    assert post.endswith("\n<pre>She &amp; he</pre>")
    assert re.search(r'<a href="/a\?b=1&amp;c=2">[^<]+</a>', post)
    assert ask(POST, source="auto")["detectedLanguage"]["language"] == "en"
    german = "<p>Das ist <b>mein</b> Haus, und der Hund &amp; die Katze wohnen hier.</p>"
    assert ask(german, source="auto")["translatedText"] == german
    assert len(set(ask("<i>She</i> sees", alternatives=2)["alternatives"])) == 2
    status, answer = server.post("/details", WHOLE | {"format": "html"})
    assert (status, answer["error"]) == (400, "html format is not supported")


def test_a_request_s_own_prefix_begins_its_translation(server, by_command_line):
    fields = {"q": "\n".join(TEXTS[:2]), "source": "en", "target": "de", "alternatives": 1}
    _, answer = server.post("/translate", fields | {"prefix": "Der rote"})
    assert all(text.startswith("Der rote") for text in [answer["translatedText"], *answer["alternatives"]])
    assert answer["translatedText"].split("\n")[1] == by_command_line[1].split("\t")[0]
    _, answer = server.post("/translate", fields | {"q": TEXTS[:2], "prefix": ["", "Die"]})
    assert answer["translatedText"][0] == by_command_line[0].split("\t")[0]
    assert answer["translatedText"][1].startswith("Die")
    _, answer = server.post("/details", fields | {"prefix": "\nDie"})
    assert answer["texts"][0][1][0]["translations"][0]["text"].startswith("Die")


def test_a_request_s_own_terms_are_in_its_translation(server):
    fields = {"q": ["He sees two houses.", "He sees a dog."], "source": "en", "target": "de"}
    free = server.post("/translate", fields)[1]["translatedText"]
    _, answer = server.post("/translate", fields | {"terminology": {"houses": "Hütten"}})
    assert "Hütten" in answer["translatedText"][0]
    assert "Hütten" not in free[0]
    assert answer["translatedText"][1] == free[1]
    form = urllib.parse.urlencode({"q": fields["q"][0], "source": "en", "target": "de", "terminology": "houses\tHütten\n"})
    for body in (form, form.replace("%C3%BC", "ü")):  # curl -d does not encode it
        assert server.post("/translate", body.encode(), "application/x-www-form-urlencoded") == (
            200, {"translatedText": answer["translatedText"][0]})


def multipart(name: str, content: bytes, **fields: str) -> tuple[bytes, str]:
    """A form with a file, and its content type."""
    parts = [f'Content-Disposition: form-data; name="{field}"\r\n\r\n{value}'.encode() for field, value in fields.items()]
    parts.append(f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + content)
    return b"".join(b"--limit\r\n" + part + b"\r\n" for part in parts) + b"--limit--\r\n", "multipart/form-data; boundary=limit"


def test_a_file_is_translated_and_downloaded_once(server, by_command_line):
    assert {".txt", ".srt", ".html", ".po", ".docx"} <= set(server.get("/frontend/settings")["supportedFilesFormat"])
    best = [line.split("\t")[0] for line in by_command_line]
    for source in ("en", "auto"):
        form = multipart("../tea time.txt", "\n".join(TEXTS).encode(), source=source, target="de")
        status, answer = server.post("/translate_file", *form)
        assert status == 200, answer
        url = answer["translatedFileUrl"]
        assert url.startswith(server.url)
        assert url.endswith("/tea%20time.de.txt")
        with urllib.request.urlopen(url) as response:
            assert response.read().decode().split("\n") == best
            assert response.headers["Content-Disposition"] == "attachment; filename*=utf-8''tea%20time.de.txt"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url)


def test_warnings_about_a_file_name_the_line(server):
    form = multipart("a.txt", f"{TEXTS[0]}\n  Demain matin, nous irons au marché.".encode(), source="en", target="de")
    assert server.post("/translate_file", *form)[1]["warnings"] == [
        "'Demain matin, nous irons au marché.': this looks like French; this model reads English"]


@pytest.mark.parametrize(("name", "content", "fields", "message"), [
    ("a.exe", b"", {}, "Invalid request: file format not supported"),
    ("a.txt", b"", {"target": ""}, "Invalid request: missing target"),
    ("", b"", {}, "Invalid request: file format not supported"), ("a.txt", b"\xff", {}, "Invalid request: a.txt: not UTF-8"),
    ("a.txt", b"a", {"target": "xx"}, "xx is not supported"),
    ("a.txt", b"a" * 100_001, {}, "Invalid request: a.txt: request (100001) exceeds text limit (100000)"),
    ("a.txt", "ü".encode() * 9_000, {}, "line 1: ")])
def test_a_file_that_cannot_be_translated_is_refused(server, name, content, fields, message):
    form = multipart(name, content, **{"source": "en", "target": "de"} | fields)
    status, answer = server.post("/translate_file", *form)
    assert (status, list(answer)) == (400, ["error"])
    assert answer["error"].startswith(message)


def test_files_whose_client_left_are_still_counted(monkeypatch):
    gate, parsed = threading.Event(), []
    monkeypatch.setattr(api, "parse_file", lambda *file: (parsed.append(file), gate.wait()))

    async def work() -> None:
        answering = Api(SimpleNamespace(batcher=None), from_hydra(ServeConfig, composed("serve")))
        for number in range(5):
            form = SimpleNamespace(api_key="", file=UploadFile(io.BytesIO(b"a"), filename=f"{number}.txt"))
            asked = asyncio.ensure_future(answering.translate_file(form, None))
            await asyncio.sleep(0.02)
            asked.cancel()
            await asyncio.sleep(0.02)
        gate.set()
        answering._files.shutdown()

    asyncio.run(work())
    assert [name for name, *_ in parsed] == ["0.txt", "1.txt"]


def test_translated_files_wait_for_a_while_and_within_bounds():
    async def work() -> None:
        downloads = Downloads(10, 0.05)
        token, other = downloads.add(File("a", b"12345")), downloads.add(File("b", b"12345"))
        assert token != other
        with pytest.raises(NoRoom):
            downloads.add(File("c", b"1"))
        assert downloads.take(token) == File("a", b"12345")
        assert downloads.take(token) is None
        downloads.add(File("c", b"1"))
        await asyncio.sleep(0.1)
        assert downloads.take(other) is None

    asyncio.run(work())


def test_the_reference_names_every_path_and_loads_nothing(server):
    spec = server.get("/spec")
    with urllib.request.urlopen(server.url + "/docs") as response:
        page, headers = response.read().decode(), response.headers
    assert {"/translate", "/translate_file", "/detect", "/languages", "/details", "/metrics"} <= set(spec["paths"])
    assert all(f'id="{path}"' in page for path in spec["paths"])
    body = spec["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["required"] == ["q", "source", "target"]
    assert body["schema"]["properties"]["alternatives"]["maximum"] == 4
    details = spec["paths"]["/details"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["schema"]["properties"]) - set(details["properties"]) == {"format"}
    assert "letter.de.docx&#34;" in page
    assert all(f'<th scope="row">{status}</th>' in page for status in (400, 403, 404, 405, 413, 429, 500, 503, 504))
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', page)) == {"icon.svg", "reference.css", ".", "spec"}
    assert "<script" not in page
    assert "style=" not in page
    assert f"curl {server.url}/translate" in page


def test_examples_of_the_reference_are_answered(server):
    for path, methods in server.get("/spec")["paths"].items():
        if body := methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json"):
            assert server.post(path, body["example"])[0] == 200, path


def test_metrics_count_requests_by_path_and_status(server):
    def values() -> dict[str, float]:
        with urllib.request.urlopen(server.url + "/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            lines = [line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    before = values()
    server.post("/translate", WHOLE | {"q": "I see two dogs. He sees a house."})
    server.post("/translate", {})
    with pytest.raises(urllib.error.HTTPError):
        server.get(f"/{'x' * 20}")
    after = values()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('translator_requests_total{path="/translate",status="200"}') == 1
    assert grown('translator_requests_total{path="/translate",status="400"}') == 1
    assert grown('translator_requests_total{path="other",status="404"}') == 1
    assert grown('translator_request_seconds_count{path="/translate"}') == 2
    assert grown("translator_sentences_total") == 2
    assert after["translator_waiting_sentences"] == 0
    assert not any("xxx" in name for name in after)


def test_details_of_a_line_with_tags_spell_it(server):
    line = "<i>She sees</i> two <b>houses</b>."
    _, answer = server.post("/details", WHOLE | {"q": line})
    [[[sentence]]] = answer["texts"]
    assert "".join(sentence["source"]) == line
    assert sentence["translations"][0]["text"].count("<") == 4
    for translation in sentence["translations"]:
        assert "".join(token["text"] for token in translation["tokens"]) == translation["text"]


def test_details_spell_the_text_and_its_translations(server, by_command_line):
    q = f"{TEXTS[0]}\n{TEXTS[1]}"
    status, answer = server.post("/details", {"q": q, "source": "en", "target": "de", "alternatives": 2})
    assert status == 200
    [lines] = answer["texts"]
    for text, line, expected in zip(q.split("\n"), lines, by_command_line, strict=False):
        assert "".join(span for sentence in line for span in sentence["source"]) == text
        [sentence] = line
        assert [translation["text"] for translation in sentence["translations"]] == expected.split("\t")
        for translation in sentence["translations"]:
            assert "".join(token["text"] for token in translation["tokens"]).strip() == translation["text"]
            for token in translation["tokens"]:
                assert token["log_probability"] <= 0
                assert len(token["attention"]) == len(sentence["source"])
                assert 0 <= sum(token["attention"]) <= 1.01


def test_details_have_other_tokens_only_on_request(server):
    fields = {"q": TEXTS[0], "source": "en", "target": "de"}
    [[[plain]]], [[[sentence]]] = (
        server.post("/details", fields | more)[1]["texts"] for more in ({}, {"others": 3, "prefix": "Der"}))
    assert not any("others" in token for token in plain["translations"][0]["tokens"])
    for token in sentence["translations"][0]["tokens"]:
        others = [(other["text"], other["log_probability"]) for other in token["others"]]
        assert 0 < len(others) <= 3
        assert token["text"] not in dict(others)
        assert others == sorted(others, key=lambda other: -other[1])
        assert math.exp(token["log_probability"]) + sum(math.exp(sure) for _, sure in others) < 1.01
    assert server.post("/details", fields | {"others": 21})[0] == 400


# A request whose body has only begun.
BEGUN = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
WHOLE = {"q": "a", "source": "en", "target": "de"}
REFUSED = [
    ({"source": "en", "target": "de"}, 400, "Invalid request: missing q parameter"),
    ({"q": "", "source": "en", "target": "de"}, 400, "Invalid request: missing q parameter (absent or empty)"),
    ({"q": "a", "target": "de"}, 400, "Invalid request: missing source parameter"),
    ({"q": "a", "source": "en", "target": None}, 400, "Invalid request: missing target parameter"),
    (WHOLE | {"target": "xx"}, 400, "xx is not supported. Use one of de, en"),
    (WHOLE | {"source": "xx"}, 400, "xx is not supported"),
    (WHOLE | {"target": "en"}, 400, "English (en) is not available as a target language from English (en)"),
    (WHOLE | {"source": "auto", "target": "xx"}, 400, "xx is not supported. Use one of de, en"),
    (WHOLE | {"format": "rtf"}, 400, "rtf format is not supported"),
    (WHOLE | {"alternatives": 99}, 400, "Invalid request: alternatives parameter must be <= 4"),
    (WHOLE | {"alternatives": -1}, 400, "Invalid request: alternatives parameter: must be greater than or equal to 0"),
    (WHOLE | {"alternatives": "many"}, 400, "Invalid request: alternatives parameter: must be a whole number"),
    (WHOLE | {"prefix": ["a", "b"]}, 400, "Invalid request: prefix parameter: must be a text, or a list as long as q"),
    (WHOLE | {"prefix": "a" * 3001}, 400, "Invalid request: prefix and terminology exceed text limit (3000)"),
    (WHOLE | {"prefix": "\ud800"}, 400, "Invalid request: prefix parameter: "),
    (WHOLE | {"terminology": {"a": " "}}, 400, "Invalid request: terminology parameter: "),
    (WHOLE | {"terminology": "a b"}, 400, "Invalid request: terminology parameter: line 1: expected a source"),
    (WHOLE | {"terminology": ["a"]}, 400, "Invalid request: terminology parameter: must be an object"),
    (WHOLE | {"q": 7}, 400, "Invalid request: q parameter: must be text"),
    (WHOLE | {"q": {"a": "b"}}, 400, "Invalid request: q parameter: "),
    (WHOLE | {"q": ["a", None]}, 400, "Invalid request: q parameter: "),
    (WHOLE | {"q": "a" * 3001}, 400, "Invalid request: request (3001) exceeds text limit (3000)"),
    (WHOLE | {"q": ["a"] * 51}, 400, "Invalid request: request (51) exceeds text limit (50)"),
    (WHOLE | {"q": "b\n" + "ü" * 1500}, 400, "line 2: "),
    (WHOLE | {"q": "\ud800"}, 400, "Invalid request: q parameter: "),
    (WHOLE | {"source": "\udfff"}, 400, "Invalid request: source"),
    (WHOLE | {"target": "\ud800"}, 400, "Invalid request: target"),
    (WHOLE | {"api_key": ["x"]}, 400, "Invalid request: api_key"),
    (["q"], 400, "Invalid JSON format"), (b"{", 400, "Invalid JSON format"), (b"", 400, "Invalid JSON format"),
    (b"\xff\xfe\x00", 400, "Invalid JSON format"), (b"[" * 20_000, 400, "Invalid JSON format"),
    (b'{"q": ' + b"9" * 9000 + b"}", 400, "Invalid JSON format"),
    (b"{" * 1_000_000, 413, "Invalid request: its body is larger"),
    (WHOLE | {"q": "a" * 200_000}, 413, "Invalid request: its body is larger"),
]


@pytest.mark.parametrize(("fields", "status", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_answered_is_told_in_the_api_s_shape(server, fields, status, message):
    for path in ("/translate", "/details"):
        got, answer = server.post(path, fields)
        assert (got, list(answer)) == (status, ["error"])
        assert answer["error"].startswith(message)


def test_odd_texts_are_answered(server):
    for q in ("\x00", "a\x00b", "\u202e\ufeff\u0301", "😀" * 50, "<script>alert(1)</script>", "\x1b[31m", "¿", "\u2028"):
        for path in ("/translate", "/details", "/detect"):
            status, _ = server.post(path, WHOLE | {"q": q})
            assert status == 200


def test_other_paths(server):
    for path, expected in (("/suggest", 403), ("/translate_file", 400)):
        status, answer = server.post(path, {})
        assert (status, list(answer)) == (expected, ["error"])
    for path in ("/nowhere", "/../api.py", "/%2e%2e/app.py", "/download_file/x/y", "/openapi.json"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.get(path)
        assert caught.value.code == 404
        assert list(json.load(caught.value)) == ["error"]
    assert server.post("/translate/", WHOLE, Host="evil.example")[0] == 404  # no redirect to another host
    for method, path, allowed in (("GET", "/translate", "POST"), ("DELETE", "/languages", "GET"), ("POST", "/", "GET")):
        with contextlib.closing(http.client.HTTPConnection(server.host, server.port)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            assert (response.status, list(json.load(response))) == (405, ["error"])
            assert allowed in response.headers["Allow"]
    settings = server.get("/frontend/settings")
    assert settings["charLimit"] == 3000
    assert settings["keyRequired"] is False
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert server.get("/health")["status"] == "ok"


def test_what_is_no_http_is_turned_away(server):
    for data in (b"\x00\x01\x02\r\n\r\n", b"POST /translate HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"):
        with (socket.create_connection((server.host, server.port), timeout=30) as connection,
              contextlib.suppress(ConnectionError)):  # it may be turned away before it has said all
            connection.sendall(data)
            assert connection.recv(100).split(b" ")[1] == b"400"
    with socket.create_connection((server.host, server.port)) as connection:  # leaves in the middle of its request
        connection.sendall(BEGUN)
    assert server.get("/health")["status"] == "ok"


def test_keys_and_origins(server, trained_folder, tmp_path):
    (tmp_path / "keys").write_text("sesame\n öffne dich \n\nlimited requests=3 characters=20\n")

    def allowed(by: Server, origin: str) -> str | None:
        with urllib.request.urlopen(urllib.request.Request(by.url + "/languages", headers={"Origin": origin})) as response:
            return response.headers["Access-Control-Allow-Origin"]

    def from_page_of(by: Server, origin: str, site: str | None = None) -> int:
        fields = urllib.parse.urlencode(WHOLE | {"api_key": "sesame"}).encode()
        told = {"Origin": origin} | ({} if site is None else {"Sec-Fetch-Site": site})  # which not all are told
        return by.post("/translate", fields, "application/x-www-form-urlencoded", **told)[0]

    assert allowed(server, "https://example.org") is None
    assert from_page_of(server, server.url, "same-origin") == 200
    assert from_page_of(server, "https://example.org", "cross-site") == 403
    assert from_page_of(server, server.url) == 200
    assert {from_page_of(server, origin) for origin in ("http://example.org", "http://[", "null", "")} == {403}
    with serving(
            tmp_path / "log", f"run={trained_folder}", f"keys={tmp_path / 'keys'}", "origins=[https://example.org]") as keyed:
        assert allowed(keyed, "https://example.org") == "https://example.org"
        assert allowed(keyed, "https://example.com") is None
        assert from_page_of(keyed, "https://example.org", "cross-site") == 200
        assert from_page_of(keyed, "https://example.com", "cross-site") == 403
        assert from_page_of(keyed, "https://example.org") == 200
        assert keyed.get("/frontend/settings")["keyRequired"] is True
        assert LibreTranslateAPI(keyed.url, "sesame").translate("a", "en", "de")
        assert keyed.post("/detect", {"q": "a", "api_key": "öffne dich"})[0] == 200
        for path in ("/translate", "/details", "/detect"):
            assert keyed.post(path, WHOLE | {"api_key": "Sesame"}) == (403, {"error": "Invalid API key"})
            assert keyed.post(path, WHOLE) == (400, {"error": "Please contact the server operator to get an API key"})
        for path in ("/metrics", "/metrics?api_key=Sesame"):
            with pytest.raises(urllib.error.HTTPError, match="40[03]"):
                keyed.get(path)
        keys = ("sesame", "öffne dich", "öffne dich".encode().decode("latin-1"))  # clients write Latin-1 or UTF-8
        bearers = [("/metrics", {"Authorization": f"Bearer {key}"}) for key in keys]
        for path, headers in (("/metrics?api_key=sesame", {}), *bearers):
            with urllib.request.urlopen(urllib.request.Request(keyed.url + path, headers=headers)) as response:
                assert b"translator_requests_total" in response.read()
        assert keyed.post("/translate_file", *multipart("a.txt", b"a", source="en", target="de"))[0] == 400
        limited = WHOLE | {"api_key": "limited"}
        assert keyed.post("/translate", limited | {"q": "a" * 21})[1]["error"].endswith("exceeds text limit (20)")
        assert keyed.post("/translate", limited | {"q": "a" * 19})[0] == 200
        status, answer = keyed.post("/translate", limited | {"q": "a" * 19})
        assert (status, answer["error"]) == (429, "Slowdown: the limit of this API key is 20 characters per minute")
        with pytest.raises(urllib.error.HTTPError) as slow:
            LibreTranslateAPI(keyed.url, "limited").translate("a" * 19, "en", "de")
        assert 0 < int(slow.value.headers["Retry-After"]) <= 60
        assert keyed.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert "sesame" not in keyed.said
        assert "Traceback" not in keyed.said


def test_only_known_hosts_are_answered(server):
    def asked(host: str) -> tuple[int, Any]:
        return server.post("/translate", WHOLE, Host=host)

    for host in ("LOCALHOST:80", "localhost.:80", "127.0.0.1:9", "[::1]:5000", "192.168.1.7", socket.gethostname()):
        assert asked(host)[0] == 200, host
    for host in ("evil.example", "evil.example:5000", "localhost.evil.example", "127.0.0.1.evil.example", "x@a@b", "[", ":80"):
        status, answer = asked(host)
        assert (status, list(answer)) == (403, ["error"]), host
    with contextlib.closing(http.client.HTTPConnection(server.host, server.port)) as connection:
        connection.request("GET", "/", headers={"Host": "evil.example"})  # nor does the page open there
        assert connection.getresponse().status == 403


def test_more_hosts_can_be_named(trained_folder):
    for hosts in (("Example.org",), ("*",)):
        with held(trained_folder, hosts=hosts) as (server, _, gate):
            gate.set()
            assert server.post("/translate", WHOLE, Host="example.org:80")[0] == 200


@pytest.mark.parametrize(("limits", "expected"), [
    ((20_000, 20_000), 1000), ((256, 20_000), 1000), ((resource.RLIM_INFINITY,) * 2, 1000), ((256, 256), 78), ((20, 20), 0)])
def test_connections_stay_within_the_limit_of_files(monkeypatch, capfd, limits, expected):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: raised.append(to))
    if not expected:
        with pytest.raises(UserError, match="ulimit -n"):
            connections.within_open_files(1000)
        return
    assert connections.within_open_files(1000) == expected
    assert (f"allows {expected}" in capfd.readouterr().err) == (expected < 1000)
    assert bool(raised) == (limits[0] == 256)


def test_a_stop_answers_what_it_accepted_and_takes_no_more(trained_folder, tmp_path):
    many = {"q": "\n".join(TEXTS * 3), "source": "en", "target": "de"}
    with serving(tmp_path / "log", f"run={trained_folder}", "search.batch_tokens=400") as server:
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(server.post, "/translate", many) for _ in range(8)]
            until(lambda: server.get("/health")["waiting"] > 100)
            server.process.send_signal(signal.SIGTERM)
            answers = [future.result() for future in asked]
        assert server.process.wait(60) == 128 + signal.SIGTERM
        assert {status for status, _ in answers} == {200}
        assert all(answer == answers[0][1] for _, answer in answers)
        assert "Traceback" not in server.said
        with pytest.raises(ConnectionRefusedError):
            server.post("/translate", many)


def test_mistakes_are_told_in_one_line(script, trained_folder, tmp_path):
    (tmp_path / "keys").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_user_error(script("serve", f"run={trained_folder}", f"port={port}"), f"port={port}", "in use")
    assert_user_error(script("serve", f"run={trained_folder}", "port=0", f"keys={tmp_path / 'keys'}"), "holds no key")
    for option, words in (
            ("origins=[example.org]", "https://example.org"), ("origins=['https://example.org/']", "without a path"),
            ("origins=['https://']", "scheme and host"), ("hosts=['https://x.org']", "without scheme"),
            ("hosts=['x.org:80']", "port"), ("max_connections=0", "max_connections")):
        with pytest.raises(UserError, match=words):
            from_hydra(ServeConfig, composed("serve", option))
    os.mkfifo(tmp_path / "fifo")
    assert_user_error(script("serve", f"run={trained_folder}", "port=0", f"keys={tmp_path / 'fifo'}"), "fifo", "regular")
    with pytest.raises(UserError, match="another run is for en to de"):
        Service(from_hydra(ServeConfig, composed("serve")), [str(trained_folder)] * 2)


# The server in this process, whose work can be held up


@contextlib.contextmanager
def held(run: Path, *, patience: float = 10, **options: Any) -> Iterator[tuple[Server, Service, threading.Event]]:
    """A server that begins no batch while the event is not set."""
    config = dataclasses.replace(from_hydra(ServeConfig, composed("serve", "device=cpu")), **options)
    service = Service(config, [str(run)])
    gate = threading.Event()
    work = service.batcher._translate
    service.batcher._translate = lambda *batch: (gate.wait(), work(*batch))[1]
    listening = socket.create_server(("127.0.0.1", 0))
    runner = connections.Server(create_app(Api(service, config)), config.max_connections, patience=patience)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
    thread.start()
    front = Server.__new__(Server)
    front.host, front.port = listening.getsockname()
    front.url = f"http://{front.host}:{front.port}"
    try:
        yield front, service, gate
    finally:
        gate.set()
        runner.should_exit = True
        thread.join()
        service.batcher.close()


def test_requests_that_wait_together_are_one_batch(trained_folder):
    with held(trained_folder) as (server, service, gate), ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(server.post, "/translate", WHOLE)]
        until(lambda: service.batcher._turn)
        asked += [pool.submit(server.post, "/translate", WHOLE | {"q": text}) for text in TEXTS[:8]]
        until(lambda: service.batcher.waiting == 8)
        gate.set()
        assert {future.result()[0] for future in asked} == {200}
        assert server.get("/health") == {"status": "ok", "waiting": 0, "sentences": 9, "batches": 2}


def test_a_short_request_goes_between_two_batches_of_a_long_one(trained_folder):
    config = from_hydra(ServeConfig, composed("serve", "device=cpu", "search.batch_tokens=400"))
    service = Service(config, [str(trained_folder)])
    many = "\n".join(TEXTS * 3)

    async def translated(text: str) -> list[str]:
        [lines] = await service.translate([text], ["en"], "de")
        return texts_of(text, lines, 1, config.search)

    async def ask() -> None:
        long = asyncio.ensure_future(translated(many))
        while not service.batcher._turn:
            await asyncio.sleep(0.001)
        short = asyncio.ensure_future(translated(TEXTS[0]))
        done, _ = await asyncio.wait({long, short}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {short}
        assert await long == await translated(many)

    try:
        asyncio.run(ask())
    finally:
        service.batcher.close()


def test_a_full_queue_sends_away(trained_folder):
    with held(trained_folder, max_waiting=1) as (server, service, gate), ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(server.post, "/translate", WHOLE)]
        until(lambda: service.batcher._turn)
        asked.append(pool.submit(server.post, "/translate", WHOLE))
        until(lambda: service.batcher.waiting == 1)
        connection = http.client.HTTPConnection(server.host, server.port)
        connection.request("POST", "/translate", json.dumps(WHOLE), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0
        assert json.load(response)["error"].startswith("Slowdown")
        connection.close()
        gate.set()
        assert {future.result()[0] for future in asked} == {200}


def test_who_sends_no_request_is_dropped(trained_folder):
    """Nor one after another, slowly, nor the rest of a body that nobody reads, nor who takes no answer."""
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with held(trained_folder, patience=0.3) as (server, _, _):
        def dropped(begins: bytes, drips: bytes, reads: bool = True) -> bool:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                client.connect((server.host, server.port))
                client.settimeout(0.05)
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    try:
                        client.sendall(begins or drips)
                        begins = b""
                        if reads and not client.recv(1 << 16):
                            return True
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        return True
            return False

        assert dropped(b"", b"")
        assert dropped(b"G", b"E")
        assert dropped(ask + b"\r\n", b"")
        assert dropped(ask + b"\r\nGET", b"X")
        assert dropped(ask + b"Content-Length: 99999\r\n\r\n", b"x")
        assert dropped((b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n") * 2000, b"G", reads=False)
        assert server.get("/health")["status"] == "ok"


def test_an_answer_may_take_longer_than_a_request(trained_folder):
    with held(trained_folder, patience=0.1) as (server, service, gate), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/translate", WHOLE)
        until(lambda: service.batcher._turn)
        end = time.monotonic() + 0.3
        until(lambda: time.monotonic() > end)
        gate.set()
        assert asked.result()[0] == 200


def test_more_connections_than_allowed_are_sent_away(trained_folder):
    with held(trained_folder, max_connections=2) as (server, _, _):
        with contextlib.ExitStack() as idle:
            for _ in range(2):
                idle.enter_context(socket.create_connection((server.host, server.port)))
            connection = http.client.HTTPConnection(server.host, server.port)
            connection.connect()
            answer = http.client.HTTPResponse(connection.sock)  # before anything is asked
            answer.begin()
            assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
            assert json.load(answer)["error"].startswith("Slowdown")
            connection.close()
        assert server.get("/health")["status"] == "ok"


def test_what_takes_too_long_fails(trained_folder):
    with held(trained_folder, timeout=0.2) as (server, _, _):
        status, answer = server.post("/translate", WHOLE)
        assert (status, list(answer)) == (504, ["error"])
        with socket.create_connection((server.host, server.port), timeout=30) as slow:  # its body never comes
            slow.sendall(BEGUN)
            assert slow.recv(100).split(b" ")[1] == b"504"


def test_who_leaves_waits_no_longer(trained_folder):
    with held(trained_folder) as (server, service, _):
        for waiting in (0, 1):  # the first is in work
            connection = http.client.HTTPConnection(server.host, server.port)
            connection.request("POST", "/translate", json.dumps(WHOLE), {"Content-Type": "application/json"})
            until(lambda: service.batcher._turn and service.batcher.waiting == waiting)  # noqa: B023 called at once
        connection.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: service.batcher.waiting == 0)


# Load


@pytest.mark.torture
def test_load(tmp_path, trained_folder, script):
    """`LOAD_RUN=runs/x LOAD_TEXTS=file LOAD_CLIENTS=16 LOAD_SECONDS=60 LOAD_OPTIONS=engine=torch`: not the tests' own."""
    run = Path(os.environ.get("LOAD_RUN", trained_folder))
    texts = Path(os.environ["LOAD_TEXTS"]).read_text().splitlines() if "LOAD_TEXTS" in os.environ else TEXTS
    clients, seconds = int(os.environ.get("LOAD_CLIENTS", "16")), float(os.environ.get("LOAD_SECONDS", "60"))
    options = [f"run={run}", *os.environ.get("LOAD_OPTIONS", "").split()]
    expected = script("translate", *options, stdin="\n".join(texts).encode()).stdout.decode().splitlines()
    assert len(expected) == len(texts)
    with serving(tmp_path / "log", *options) as server:
        languages = server.get("/frontend/settings")["language"]
        source, target = languages["source"]["code"], languages["target"]["code"]
        end = time.monotonic() + seconds

        def ask(client: int) -> list[float]:
            """The seconds that each answer took."""
            api, taken, number = LibreTranslateAPI(server.url), [], client
            while (begun := time.monotonic()) < end:
                number = (number + clients) % len(texts)
                assert api.translate(texts[number], source, target) == expected[number]
                taken.append(time.monotonic() - begun)
            return taken

        with ThreadPoolExecutor(clients) as pool:
            taken = sorted(second for of_client in pool.map(ask, range(clients)) for second in of_client)
        health = server.get("/health")
        assert "Traceback" not in server.said
    p50, p95, p99 = (1000 * taken[int(len(taken) * share)] for share in (0.5, 0.95, 0.99))
    print(f"\n{clients} clients, {seconds:g} s: {len(taken):,} sentences, {len(taken) / seconds:.1f}/s, p50 {p50:.0f} ms, "
          f"p95 {p95:.0f} ms, p99 {p99:.0f} ms, {health['sentences'] / health['batches']:.1f} sentences a batch, 0 errors")
