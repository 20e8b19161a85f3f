"""The page in a browser, as a reader of it: what is typed and clicked, and what can be seen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["Browser", "Page", "open_browser"]

Found = TypeVar("Found")
Browser = webdriver.Chrome
SECONDS = 15.0


def open_browser() -> Browser:
    """Headless Chromium through its own driver; nothing is fetched. Skips the test where there is none."""
    paths = shutil.which("chromium"), shutil.which("chromedriver")
    if None in paths:
        assert not os.environ.get("TRIOLET_REQUIRE_BROWSER"), "this machine should have Chromium"
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(paths[0])
    # Root has no sandbox, and containers have little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    # Pages that were left would otherwise stay, each in a process of its own.
    options.add_argument("--disable-features=BackForwardCache,SpareRendererForSitePerProcess")
    # Nobody is there to say whether a key is to be kept, and the keys pressed would go to that question.
    options.add_experimental_option(
        "prefs", {"credentials_enable_service": False, "profile.password_manager_enabled": False}
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(str(paths[1])))


class Page:
    """The page of the server at ``url``, in a browser without anything of earlier visits.

    ``is_used``: one that is open stays as it is.
    """

    def __init__(self, browser: Browser, url: str, *, is_used: bool = False) -> None:
        self.browser = browser
        self.url = url
        if self._is_here and is_used:
            return
        if self._is_here:
            # An answer that is still under way must not be kept after that.
            self.run("localStorage.clear(); sessionStorage.clear(); Storage.prototype.setItem = () => {}")
        self.open()

    @property
    def _is_here(self) -> bool:
        return self.browser.current_url.startswith(f"{self.url}/")

    def open(self, place: str = "") -> None:
        """Load the page anew, in the process that it has already."""
        if self._is_here:
            self.run("history.replaceState(null, '', arguments[0])", f"/{place}")
            self.browser.refresh()
        else:
            self.browser.get(f"{self.url}/{place}")
        self.wait(lambda: self.text("engine-state") != "connecting")

    # ---- reading

    def find(self, css: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def text(self, element_id: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).textContent", element_id))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def call(self, modules: str, expression: str, *given: Any) -> Any:
        """The value of an expression in the names of some modules of the page, and ``given``."""
        script = (
            "const [modules, given, done] = arguments;"
            "Promise.all(modules.split(' ').map((name) => import(new URL(`page/${name}`, document.baseURI))))"
            f".then((all) => {{ with (Object.assign({{}}, ...all)) {{ return {expression}; }} }})"
            ".then((value) => done({ value }), (error) => done({ error: String(error) }));"
        )
        answer = self.browser.execute_async_script(script, modules, given)
        assert "error" not in answer, answer
        return answer["value"]

    def wait(self, found: Callable[[], Found]) -> Found:
        """Until it is so; what it found."""
        waiting = WebDriverWait(
            self.browser, SECONDS, poll_frequency=0.02, ignored_exceptions=[StaleElementReferenceException]
        )
        return waiting.until(lambda _: found())

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Who said what, as it is read."""
        script = (
            "return [...document.querySelectorAll('#log .message')].map((one) =>"
            " [one.ariaLabel, one.querySelector(':scope > .text').innerText.trim()])"
        )
        return [(who, text) for who, text in self.run(script)]

    @property
    def is_answering(self) -> bool:
        return self.text("send") == "Stop"

    @property
    def focused(self) -> str:
        """The id, or else the text, of what has the focus."""
        script = "const { id, textContent } = document.activeElement; return id || textContent.trim()"
        return str(self.run(script))

    def sent_bodies(self) -> list[str]:
        """What has gone over the network since this was asked last, as the browser's own records have it."""
        return list(_posted(self.browser.get_log("performance")))

    def complaints(self) -> list[str]:
        """What the console says, but for answers that were errors."""
        entries = self.browser.get_log("browser")
        return [str(entry) for entry in entries if entry["source"] != "network"]

    # ---- doing

    def read_again(self) -> None:
        """Do not wait for the next reading of the server; afterwards it is shown."""
        count = "return performance.getEntriesByName(new URL('health', document.baseURI)).length"
        num_before = self.run(count)
        self.run("dispatchEvent(new Event('hashchange'))")
        self.wait(lambda: self.run(count) > num_before)

    def press(self, *keys: str) -> None:
        """Keys at once, the last one let go first."""
        actions = ActionChains(self.browser)
        for key in keys[:-1]:
            actions.key_down(key)
        actions.send_keys(keys[-1])
        for key in reversed(keys[:-1]):
            actions.key_up(key)
        actions.perform()

    def click(self, label: str, within: str = "body") -> None:
        """The button with this text."""
        buttons = [
            button
            for button in self.all(f"{within} button")
            if button.is_displayed() and button.text == label
        ]
        buttons[-1].click()

    def ask(self, text: str) -> None:
        """Type and send, and wait until it is under way or over."""
        num_before = len(self.messages)
        self.find("#prompt").send_keys(text)
        self.find("#send").click()
        self.wait(lambda: len(self.messages) > num_before)

    def ask_and_wait(self, text: str) -> str:
        """The answer."""
        self.ask(text)
        self.wait(lambda: not self.is_answering)
        return self.messages[-1][1]

    def set(self, name: str, value: str) -> None:
        """A setting."""
        field = self.find(f'#settings [name="{name}"]')
        field.clear()
        field.send_keys(value, Keys.TAB)


def _posted(records: list[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        event = json.loads(record["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            request = event["params"]["request"]
            if request["method"] == "POST":
                yield request["postData"]
