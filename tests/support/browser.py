"""Drive Chromium over a page. Importing this skips the importing tests where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: the extra `dev` has it")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("no chromium and chromedriver: Debian's packages of these names", allow_module_level=True)

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.server import Server

FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1200,900")


class Browser:
    """The page as a person sees it."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))

    def open(self, server: Server, address: str = "") -> None:
        """Open the page with nothing kept from before."""
        self.driver.execute_script("if (location.protocol === 'http:') { localStorage.clear(); sessionStorage.clear(); }")
        self.load(server.url + address)

    def load(self, url: str) -> None:
        self.driver.get("about:blank")  # a page that differs only behind # would stay
        self.driver.get(url)
        self.until(lambda: self["source"].find_elements(By.TAG_NAME, "option"))

    def __getitem__(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, happened: object) -> None:
        WebDriverWait(self.driver, 60).until(lambda _: happened())  # type: ignore[operator]

    def type(self, text: str) -> None:
        self["text"].send_keys(text)
        self.until_translated()

    def paste(self, text: str) -> None:
        self.driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", self["text"], text)

    def until_translated(self) -> None:
        self.until(lambda: self.all(".word") and not self.all("#output.waiting"))

    def keys(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def weights(self) -> list[float]:
        """Of the marks under the text, from where it begins."""
        return self.driver.execute_script(
            "return [...document.querySelectorAll('#mirror span')].map(e => +e.style.getPropertyValue('--weight'))")

    def wide(self) -> tuple[int, int]:
        """What the page takes, and what there is."""
        return self.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
