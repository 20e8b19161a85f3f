"""A server that asks for a key: the page comes without one, asks for it, and tells nobody."""

from __future__ import annotations

import pytest
from tests.browser.conftest import ToldEngine
from tests.browser.page import Page

pytestmark = pytest.mark.slow

OPTIONS = {"api_key": "s3cret"}


def test_the_page_asks_for_the_key_and_forgets_it_with_the_tab(page: Page, engine: ToldEngine) -> None:
    page.wait(lambda: page.find("#key-dialog").is_displayed())
    assert page.text("key-problem") == "This server asks for an API key."
    assert page.text("engine-state") == "needs a key"
    page.find("#key").send_keys("wrong")
    page.click("Use it")
    page.wait(lambda: page.text("key-problem") == "The server does not take this key.")
    page.wait(lambda: page.find("#key-dialog").is_displayed())
    page.find("#key").send_keys("s3cret")
    page.click("Use it")
    page.wait(lambda: page.text("engine-state") == "ready")
    assert page.ask_and_wait("Hi") == "Hello, wörld 🙂 and more"
    page.click("Request")
    assert "$TRIOLET_API_KEY" in page.text("raw-curl")
    assert "s3cret" not in page.run("return document.documentElement.outerHTML")
    assert "s3cret" not in page.run("return JSON.stringify(localStorage)")
    assert "s3cret" in page.run("return JSON.stringify(sessionStorage)")
    page.open()
    page.wait(lambda: page.text("engine-state") == "ready")
    page.click("API key")
    page.click("Forget it")
    page.wait(lambda: page.text("engine-state") == "needs a key")
    assert "s3cret" not in page.run("return JSON.stringify(sessionStorage)")
