"""The page over the server as its users have it; it makes the documentation's pictures.

``TRIOLET_SCREENSHOTS=docs/images python -m pytest tests/browser/test_real_model_page.py`` keeps them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.browser.page import Browser, Page
from tests.integration.real_server import real_server

ROOT = Path(__file__).parents[2]
MAX_PICTURE_BYTES = 150_000
PICTURE_SECONDS = 150.0
NUM_CLIENTS = 6
WORDS = ("one", "river", "of", "the", "seven", "lamps", "green", "and", "slowly", "turns")
pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def url(smollm2_path: Path, browser: Browser) -> Iterator[str]:
    flags = ("--served-model-name", "smollm2-135m-instruct", "--num-threads", "2", "--speculation", "ngram")
    with real_server(smollm2_path, *flags) as address:
        yield address
        browser.get("about:blank")


def test_the_real_model_answers_and_the_engine_shows_it(url: str, browser: Browser) -> None:
    page = Page(browser, url)
    for name, value in {"temperature": "0", "max_completion_tokens": "120"}.items():
        page.set(name, value)
    page.ask_and_wait("What is the capital of France?")
    answer = page.ask_and_wait("Write a Python function that adds two numbers.")
    assert len(answer.split()) > 10
    assert "tokens/s" in page.all(".message.assistant .summary")[-1].text
    keep(page, "page-chat")
    page.run("location.hash = '#engine'")
    page.wait(lambda: page.text("number-output-rate") not in ("–", "0"))
    page.wait(lambda: page.text("interToken-50") != "–")
    assert int(page.text("number-kv-blocks").split(" of ")[1]) == 256
    assert page.find("#ranks .state").text == "ready"
    if "TRIOLET_SCREENSHOTS" in os.environ:
        with busy(url, PICTURE_SECONDS):
            time.sleep(PICTURE_SECONDS)
            keep(page, "page-engine")
    assert page.complaints() == []


@contextmanager
def busy(url: str, seconds: float) -> Iterator[None]:
    """Have the engine do what is worth a picture: more and more clients, texts of many lengths."""

    def client(number: int, until: float) -> None:
        dice = random.Random(number)
        time.sleep(number * seconds / (2 * NUM_CLIENTS))
        while time.monotonic() < until:
            prompt = " ".join(dice.choice(WORDS) for _ in range(dice.randrange(20, 400)))
            body = {"prompt": prompt, "max_tokens": dice.randrange(20, 200), "ignore_eos": True}
            httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()

    until = time.monotonic() + seconds
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        asked = [clients.submit(client, number, until) for number in range(NUM_CLIENTS)]
        yield
        for future in asked:
            future.result()


def keep(page: Page, name: str) -> None:
    """Pictures of the page in the light and in the dark, where they are wanted."""
    folder = os.environ.get("TRIOLET_SCREENSHOTS")
    for scheme in ("light", "dark") if folder else ():
        while page.text("theme") != f"Theme: {scheme}":
            page.find("#theme").click()
        path = ROOT / str(folder) / f"{name}-{scheme}.png"
        assert page.browser.save_screenshot(str(path))
        assert path.stat().st_size < MAX_PICTURE_BYTES
