"""The page that is served at /, in a real Chromium without a screen."""

from __future__ import annotations

import math
import re
import shutil
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, quote

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.browser import Browser  # it skips this file where there is no Chromium
from tests.support.corpora import PAIRS
from tests.support.server import Server, serving

TEXTS = [source for source, _ in PAIRS[::40]]


@pytest.fixture(scope="module")
def server(trained_folder, reverse_folder, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    run = shutil.copytree(trained_folder, folder / "mine")
    (run / "report").mkdir()
    (run / "report" / "report.html").write_text("<h1>A report</h1>")
    with serving(folder / "log", f"run=[{run},{reverse_folder}]", "max_characters=300") as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def page(chromium, server) -> Iterator[Browser]:
    """Fresh; in the end it must have asked nobody else and the console must be empty."""
    chromium.open(server)
    yield chromium
    loaded = chromium.driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded
    assert all(address.startswith(server.url + "/") for address in loaded)
    assert not [entry for entry in chromium.driver.get_log("browser") if "status of 400" not in entry["message"]]


def answer_with(
    page: Browser, source: list[str], tokens: list[tuple[str, float]], attention: list[list[float]] | None = None
) -> None:
    """Let the server answer with a sentence, of these source tokens, target tokens and their probabilities."""
    rows = attention or [[1 / len(source)] * len(source)] * len(tokens)
    translation: dict[str, Any] = {"text": "".join(text for text, _ in tokens).strip(), "score": 0, "tokens": [
        {"text": text, "log_probability": math.log(sure), "attention": row}
        for (text, sure), row in zip(tokens, rows, strict=True)]}
    respond(page, {"texts": [[[{"source": source, "translations": [translation]}]]]})


def respond(page: Browser, answer: Any) -> None:
    page.driver.execute_script("const answer = JSON.stringify(arguments[0]); fetch = async () => new Response(answer)", answer)


def by_api(server: Server, text: str, alternatives: int = 0) -> dict:
    return server.post("/translate", {"q": text, "source": "en", "target": "de", "alternatives": alternatives})[1]


def test_it_translates_as_one_types(page, server):
    page.type(TEXTS[0])
    assert page["output"].text == by_api(server, TEXTS[0])["translatedText"]
    page.type("\n\n" + TEXTS[1])
    assert page["output"].text.split("\n")[-1] == by_api(server, TEXTS[1])["translatedText"]
    assert len(page.all("#output p")) == 3
    page["clear"].click()
    assert page["output"].text == ""
    assert page.focused == page["text"]


def test_only_what_changed_is_asked_for(page):
    page.type(TEXTS[0])
    page.driver.execute_script(
        "const real = fetch; window.asked = []; fetch = (...a) => { asked.push(a[1].body); return real(...a); }")
    page.type("\n" + TEXTS[1])
    asked = page.driver.execute_script("return asked")
    assert not any(TEXTS[0] in body for body in asked)
    assert any(TEXTS[1] in body for body in asked)


def test_pointing_at_a_word_marks_what_it_was_read_from(page):
    page.type(TEXTS[0])
    assert not any(page.weights())
    ActionChains(page.driver).move_to_element(page.all(".word")[0]).perform()
    assert max(page.weights()) == 1
    assert "% sure" in page["told"].text
    ActionChains(page.driver).move_to_element(page["clear"]).perform()
    assert not any(page.weights())


def test_only_unsure_words_are_tinted(page):
    answer_with(page, ["a", " b", " c"], [(" sure", 0.9), (" half", 0.5), (" unsure", 0.1)])
    page.type("a b c")
    tints = [word.value_of_css_property("background-color") for word in page.all(".word")]
    assert tints[0] == tints[1] != tints[2]


@pytest.mark.parametrize(("attention", "from_what"), [
    ([0.1, 0.2, 0.7], "station"), ([0.0, 0.0, 1.0], ""), ([0.6, 0.1, 0.3], "the")])
def test_punctuation_is_never_named_as_a_word_s_origin(page, attention, from_what):
    answer_with(page, ["the", " station", "?"], [("Bahn", 1), ("hof", 1), ("?", 1)], [attention, attention, [0, 0, 1]])
    page.type("the station?")
    ActionChains(page.driver).move_to_element(page.all(".word")[0]).perform()
    assert page["told"].text == "“Bahnhof?”, 100 % sure" + (f", from “{from_what}”" if from_what else "")
    assert page.weights()[2] == 0


def test_a_text_in_another_language_is_noted(page):
    page.type("Demain matin, nous irons au marché.\n" + TEXTS[0])
    assert page["warnings"].text == "This looks like French; this model reads English."
    page.paste(TEXTS[0])
    page.until(lambda: not page["warnings"].text)
    assert not page["warnings"].is_displayed()


def tab_until(page: Browser, element: WebElement) -> None:
    for _ in range(10):
        if page.focused == element:
            return
        page.keys(Keys.TAB)
    raise AssertionError("the Tab key does not lead there")


def test_the_keyboard_alone_suffices(page, server):
    page.keys(TEXTS[0])  # the text has the focus
    page.until_translated()
    expected = by_api(server, TEXTS[0], 3)
    words = page.all(".word")
    tab_until(page, words[0])
    page.keys(Keys.ARROW_RIGHT)
    assert page.focused == words[1]
    assert max(page.weights()) == 1
    page.keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ENTER)
    page.until(lambda: page.all("#choices button"))
    assert page.focused == page.all("#choices button")[0]
    page.keys(Keys.ARROW_DOWN)
    assert page.focused == page.all("#choices button")[1]
    page.keys(Keys.ESCAPE)
    assert page.focused == words[1]
    assert page["text"].get_attribute("value") == TEXTS[0]
    tab_until(page, page["copy"])
    page.keys(Keys.TAB, Keys.TAB, Keys.ENTER)  # the second of the translations
    assert page["output"].text == expected["alternatives"][0]
    assert page.focused.get_attribute("aria-pressed") == "true"


def test_the_ranked_translations_have_scores(page, server):
    page.type(TEXTS[0])
    expected = by_api(server, TEXTS[0], 3)
    assert [e.text for e in page.all("#ranked span")] == [expected["translatedText"], *expected["alternatives"]]
    scores = [float(e.text.removesuffix(" %").removeprefix("<")) for e in page.all("#ranked data")]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 100 for score in scores)


def test_markup_stays_text(page):
    hostile = "<img src=x onerror=alert(1)><script>She sees two trees.</script>"
    page["text"].send_keys(hostile)
    page.until_translated()
    assert page.driver.execute_script("return document.getElementById('mirror').textContent") == hostile + "\n"
    translation = {"text": "<img src=x onerror=alert(3)>", "score": 0, "tokens": []}
    respond(page, {"texts": [[[{"source": ["a"], "translations": [translation], "warnings": []}]]]})
    page["text"].send_keys("\na")
    page.until(lambda: "alert(3)" in page["output"].text)
    assert not page.all("#output img, #mirror img, #ranked img, main script")


def test_what_goes_wrong_is_told(page, server):
    page.paste("a" * 301)
    assert "longer than 300" in page["error"].text
    page["clear"].click()
    assert not page["error"].is_displayed()
    page.driver.execute_script("window.real = fetch; fetch = async () => { throw new TypeError('gone'); }")
    page["text"].send_keys("a")
    page.until(lambda: page["error"].text == "The server does not answer. Trying again.")
    page.driver.execute_script("fetch = real")
    page.until_translated()
    page.driver.execute_script(
        "let times = 0; fetch = async (...a) => times++ ? real(...a) : new Response('{\"error\": \"Slowdown\"}',"
        " { status: 503, headers: { 'Retry-After': '1' } })")
    page["text"].send_keys("b")
    page.until(lambda: not page.all("#output.waiting"))
    assert not page["error"].is_displayed()


def test_an_old_answer_never_replaces_a_newer_one(page, server):
    page.driver.execute_script(
        "const real = fetch; let first = true; fetch = async (path, options) => { const slow = first; first = false;"
        " const answer = await real(path, slow ? { ...options, signal: undefined } : options);"
        " if (slow) await new Promise(done => setTimeout(done, 1500)); window.late = slow; return answer; }")
    page["text"].send_keys(TEXTS[0])
    page.until(lambda: page.driver.execute_script("return performance.getEntriesByName(location.href + 'details').length > 0"))
    page["text"].send_keys(Keys.CONTROL, "a")
    page["text"].send_keys(TEXTS[1])
    page.until(lambda: page.driver.execute_script("return window.late"))
    page.until_translated()
    assert page["output"].text == by_api(server, TEXTS[1])["translatedText"]


def test_languages_are_detected_and_swapped(page):
    page.type(TEXTS[0])
    translated = page["output"].text
    page["swap"].click()
    page.until_translated()
    assert page["text"].get_attribute("value") == translated
    assert page["source"].get_attribute("value") == "de"
    assert page["output"].get_attribute("lang") == "en"
    page["source"].send_keys("Detect")
    page.until(lambda: "Detected: " in page["source"].text)


def test_swapping_leaves_what_has_no_translation_yet(page):
    page.type(TEXTS[0])
    page.driver.execute_script("""
        const text = document.getElementById("text");
        text.value += "\\n" + arguments[0];
        text.dispatchEvent(new Event("input"));
        document.getElementById("swap").click();""", TEXTS[1])
    assert page["text"].get_attribute("value") == f"{TEXTS[0]}\n{TEXTS[1]}"
    assert page["source"].get_attribute("value") == "de"


def test_a_line_that_is_refused_is_quoted(page):
    page.type(TEXTS[0])
    page.driver.execute_script("fetch = async () => new Response('{\"error\": \"line 1: too long\"}', {status: 400})")
    page["text"].send_keys("\n" + TEXTS[1])
    page.until(lambda: page["error"].text == f"“{TEXTS[1]}”: too long")


def test_what_stands_beside_a_refused_line_is_translated(page):
    page.driver.execute_script("""
        const ask = window.fetch, bad = arguments[0];
        window.fetch = async (path, options) => {
          const lines = JSON.parse(options.body).q.split("\\n"), at = 1 + lines.indexOf(bad);
          return at ? new Response(JSON.stringify({error: `line ${at}: too long`}), {status: 400}) : ask(path, options);
        };""", TEXTS[1])
    page.paste("\n".join(TEXTS[:3]))
    page.until_translated()
    page.until(lambda: page["error"].text == f"“{TEXTS[1]}”: too long")
    assert [bool(line.text) for line in page.all("#output p")] == [True, False, True]
    page.paste(TEXTS[0])  # without it, nothing is wrong
    page.until(lambda: not page["error"].text)


def test_it_copies(page):
    page.type(TEXTS[0])
    page["copy"].click()
    page.until(lambda: page["told"].text in ("Copied", "Selected: copy it with Ctrl+C"))


def test_a_chosen_word_is_translated_on_from(page):
    page.type(TEXTS[0])
    before, word, *_ = page["output"].text.split()
    page.all(".word")[1].click()
    page.until(lambda: page.all("#choices button"))
    assert 1 < len(page.all("#choices button")) <= 5
    chosen, whole = (e.text for e in page.all("#choices li:first-child span"))
    assert chosen != word
    assert whole.startswith(f"{before} {chosen}")
    page.all("#choices button")[0].click()
    page.until(lambda: page["output"].text == whole)
    assert not page["choices"].is_displayed()
    assert whole in [e.text for e in page.all("#ranked [aria-pressed=true] span")]
    ActionChains(page.driver).move_to_element(page.all(".word")[1]).perform()
    assert max(page.weights()) == 1


def test_an_address_brings_a_text_and_a_reload_keeps_it(page, server):
    for mark in "?#":
        page.load(f"{server.url}/{mark}q={quote(TEXTS[0])}&source=de&target=en")
        page.until_translated()
        assert page["text"].get_attribute("value") == TEXTS[0]
        assert page["source"].get_attribute("value") == "de"
        assert page.driver.current_url == server.url + "/"
    page.type(" More.")
    page.driver.refresh()
    page.until_translated()
    assert page["text"].get_attribute("value") == TEXTS[0] + " More."
    assert page["source"].get_attribute("value") == "de"


def test_a_shared_link_keeps_the_text_behind_the_hash(page, server):
    page.type(TEXTS[0])
    link = page.driver.execute_async_script("import('/address.js').then(address => arguments[0](address.link()))")
    shown, _, hidden = link.partition("#")
    assert shown == server.url + "/"
    assert parse_qs(hidden) == {"q": [TEXTS[0]], "source": ["en"], "target": ["de"]}


def test_recent_texts_come_back_unless_switched_off(page):
    page.type(TEXTS[0])
    translated = page["output"].text
    page["open-recent"].click()
    assert [e.text for e in page.all("#recent-list span")] == [TEXTS[0], translated]
    page.keys(Keys.ESCAPE)
    page["clear"].click()
    page["open-recent"].click()
    page.all("#recent-list button")[0].click()
    assert page["text"].get_attribute("value") == TEXTS[0]
    page["open-recent"].click()
    page["keep-recent"].click()
    page["close-recent"].click()
    page["open-recent"].click()
    assert not page.all("#recent-list button")
    assert page.driver.execute_script("return Object.keys(localStorage)") == ["recent-off"]


def test_a_file_is_translated(page, server, tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text(TEXTS[0])
    page["file"].send_keys(str(file))
    page.until(lambda: page.all("#files a"))
    link = page.all("#files a")[0]
    assert link.text == "Download letter.de.txt"
    with urllib.request.urlopen(link.get_attribute("href")) as response:
        assert response.read().decode() == by_api(server, TEXTS[0])["translatedText"]


def test_shortcuts(page):
    page.type(TEXTS[0])
    page["text"].send_keys(Keys.CONTROL, Keys.SHIFT, "c")
    page.until(lambda: page["told"].text in ("Copied", "Selected: copy it with Ctrl+C"))
    page["copy"].click()
    page.keys(Keys.ESCAPE)
    assert page.focused == page["text"]
    page.keys(Keys.ESCAPE)
    assert page["text"].get_attribute("value") == page["output"].text == ""
    page["text"].send_keys(Keys.CONTROL, "z")
    assert page["text"].get_attribute("value") == TEXTS[0]
    page.driver.execute_async_script(
        "import('/state.js').then(({ state }) => { state.settings.frontendTimeout = 1e6; arguments[0](); })")
    page["text"].send_keys("x", Keys.CONTROL, Keys.ENTER)
    page.until_translated()


def test_colours_are_chosen_and_kept(page):
    def dark() -> bool:
        page.until(lambda: page.all("#theme"))
        return page.driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"

    assert not dark()
    page["theme"].send_keys("Dark")
    assert dark()
    page.driver.refresh()
    assert dark()
    assert page["theme"].get_attribute("value") == "dark"


def test_screen_readers_hear_the_whole_translation_once(page):
    page.type(TEXTS[0])
    page.until(lambda: page["status"].get_attribute("textContent") == page["output"].text)
    assert len(page.all("[role=status], [aria-live]")) == 1
    assert not page.all("#output [role]")


def test_one_language_is_a_heading(page):
    assert not page["target"].is_displayed()
    assert page["target-name"].text == "German"
    assert page["source"].is_displayed()
    assert not page["source-name"].is_displayed()


def test_the_footer_names_model_and_report(page, server):
    assert re.fullmatch(r"mine · [\d.]+K parameters", page["model"].text)
    with urllib.request.urlopen(page["report"].get_attribute("href")) as response:
        assert response.read() == b"<h1>A report</h1>"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    page["swap"].click()
    assert not page["report"].is_displayed()


def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 800, "deviceScaleFactor": 2, "mobile": True})
    try:
        page.type(TEXTS[0] + "w" * 90)
        takes, there_is = page.wide()
        assert takes <= there_is == 375
        text, output = page["text"].rect, page["output"].rect
        assert output["y"] >= text["y"] + text["height"]
        buttons = [button.rect for button in page.all("button") if button.is_displayed()]
        assert buttons
        assert all(min(rect["width"], rect["height"]) >= 40 for rect in buttons)  # a finger's width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_text_and_its_mirror_lie_letter_on_letter(page):
    page.type("\n".join(TEXTS) + " " + "w" * 90)
    text, mirror = page["text"], page["mirror"]
    assert text.rect == mirror.rect
    height = page.driver.execute_script("return [arguments[0].scrollHeight, arguments[0].clientHeight]", text)
    assert height[0] == height[1]  # nothing of it is hidden
    for name in ("font", "padding", "letter-spacing", "white-space", "overflow-wrap", "unicode-bidi", "text-align"):
        assert text.value_of_css_property(name) == mirror.value_of_css_property(name), name


def test_languages_from_right_to_left(page):
    page.paste("שלום")
    assert page.driver.execute_script("return getComputedStyle(document.getElementById('text')).direction") == "rtl"
    page.until_translated()
    answer_with(page, ["a", " b"], [(" שלום", 1), (" עולם", 1)])
    page["text"].clear()
    page.type("a b")
    words = page.all(".word")
    page.driver.execute_script("arguments[0].focus()", words[0])
    page.keys(Keys.ARROW_LEFT)
    assert page.focused == words[1]
    page.keys(Keys.ARROW_RIGHT)
    assert page.focused == words[0]


def luminance(colour: list[float]) -> float:
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (value / 255 for value in colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_suffices(page, scheme):
    """WCAG AA, 4.5 to 1, also where a word is tinted most, and 3 to 1 for the edges of fields."""
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    over = """const shade = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        return (colours) => { for (const c of colours) { shade.fillStyle = c; shade.fillRect(0, 0, 1, 1); }
        return [...shade.getImageData(0, 0, 1, 1).data].slice(0, 3); }"""
    try:
        for ratio, front, *back in (
                (4.5, "--ink", "--panel"), (4.5, "--faint", "--panel"), (4.5, "--faint", "--ground"),
                (4.5, "--alarm", "--panel"), (4.5, "--accent", "--ground"), (4.5, "--ink", "--panel", "--doubt 50%"),
                (4.5, "--ink", "--panel", "--accent 45%"), (3, "--edge", "--panel"), (3, "--edge", "--ground")):
            colours = page.driver.execute_script(f"const paint = (() => {{ {over} }})();" + """
                const box = document.body.appendChild(document.createElement('i'));
                const value = name => { const [n, part] = name.split(' ');
                  box.style.color = `color-mix(in oklab, var(${n}) ${part ?? '100%'}, transparent)`;
                  return getComputedStyle(box).color; };
                return arguments[0].map(stack => paint(stack.map(value)));""", [[front], back])
            bright, dim = sorted(map(luminance, colours), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= ratio, (scheme, front, back)
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
