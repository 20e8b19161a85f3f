"""By keyboard alone, by ear, on a phone, in the light and in the dark; and what the policy forbids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.common.keys import Keys
from tests.browser.conftest import ToldEngine
from tests.browser.page import Page

pytestmark = pytest.mark.slow

LONG = (
    "# Wide\n\n```\n"
    + "wide " * 60
    + "\n```\n\n| a | b |\n|---|---|\n| "
    + "x" * 90
    + " | "
    + "y" * 90
    + " |\n"
)
SCHEMES = ("light", "dark")
FORBIDDEN = ("Content Security Policy", "TrustedScript", "TrustedHTML")
CONTROLS = {"button", "textbox", "spinbutton", "combobox", "link", "dialog", "log", "region", "form"}


@pytest.fixture
def phone(page: Page) -> Iterator[Page]:
    """A screen of 360 by 740."""
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.open()
    yield page
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def prefer(page: Page, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def colours(page: Page, css: str) -> tuple[float, float]:
    """The luminance of an element's text and of what is behind it (WCAG 2.2)."""
    script = (
        "let one = document.querySelector(arguments[0]); const text = getComputedStyle(one).color;"
        "while (one && getComputedStyle(one).backgroundColor === 'rgba(0, 0, 0, 0)') one = one.parentElement;"
        "return [text, getComputedStyle(one).backgroundColor]"
    )
    text, behind = page.run(script, css)
    return luminance(text), luminance(behind)


def luminance(colour: str) -> float:
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_everything_is_done_by_keyboard_alone(page: Page, engine: ToldEngine) -> None:
    engine.hold_at = 5
    assert page.focused == "prompt"
    page.press("Hi")
    page.press(Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: page.messages[-1] == ("Model", "Hello"))
    page.press(Keys.ESCAPE)
    engine.wait_for(num_open=0)
    page.wait(lambda: not page.is_answering)
    engine.let_go()
    page.press("A line")
    page.press(Keys.SHIFT, Keys.ENTER)
    page.press("and another")
    page.press(Keys.ENTER)
    page.wait(lambda: page.messages[-2] == ("You", "A line\nand another"))
    page.wait(lambda: not page.is_answering)
    page.press(Keys.TAB)
    assert page.focused == "send"
    page.run("document.querySelector('nav a').focus()")
    reached: list[str] = []
    while len(reached) < 60 and "send" not in reached:
        reached.append(page.focused)
        outline = page.run(
            "const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);"
            "return [outlineStyle, outlineWidth]"
        )
        assert outline == ["solid", "2px"], reached[-1]
        page.press(Keys.TAB)
    order = [name for name in reached if name in ORDER]
    assert order == ORDER, reached


ORDER = [
    "Chat", "Engine", "theme", "new-conversation", "toggle-conversations", "model", "open-raw",
    "toggle-settings", "log", "Regenerate", "prompt", "send",
]  # fmt: skip


def test_dialogs_and_panels_by_keyboard(page: Page) -> None:
    for name in ("conversations", "settings"):
        toggle = page.find(f"#toggle-{name}")
        assert toggle.get_attribute("aria-expanded") == "true"
        toggle.send_keys(Keys.ENTER)
        assert toggle.get_attribute("aria-expanded") == "false"
        assert not page.find(f"#{name}").is_displayed()
    page.find("#open-raw").send_keys(Keys.ENTER)
    assert page.find("#raw").is_displayed()
    page.press(Keys.ESCAPE)
    assert not page.find("#raw").is_displayed()
    assert page.focused == "open-raw"


def test_every_control_has_a_name(page: Page, engine: ToldEngine) -> None:
    engine.reply = "<b>\n\n```py\nx\n```\n\n|a|b|\n|---|---|\n|1|2|\n"
    page.ask_and_wait("Hi")
    for place in ("", "#engine"):
        page.open(place)
        tree: dict[str, Any] = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})
        nodes = [node for node in tree["nodes"] if not node["ignored"]]
        roles = {node["role"]["value"] for node in nodes}
        assert roles & CONTROLS
        unnamed = [
            node["role"]["value"]
            for node in nodes
            if node["role"]["value"] in CONTROLS and not node.get("name", {}).get("value")
        ]
        assert unnamed == []
        headings = [node for node in nodes if node["role"]["value"] == "heading"]
        assert headings[0]["name"]["value"] == "triolet"


def test_an_answer_is_told_once_and_not_in_pieces(page: Page, engine: ToldEngine) -> None:
    page.run(
        "window.told = []; new MutationObserver(() => told.push(document.getElementById('announcements')"
        ".textContent.trim())).observe(document.getElementById('announcements'), { childList: true })"
    )
    page.ask_and_wait("Hi")
    page.wait(lambda: len(page.run("return told")) >= 2)
    assert page.run("return told") == ["The model is answering.", "Hello, wörld 🙂 and more"]
    told = page.all("[aria-live=polite], [role=alert], [role=status]")
    assert len(told) == 3, "what answers, what is wrong, how the engine is"
    assert page.find("#log").get_attribute("aria-live") == "off"


def test_a_phone_shows_it_all_without_scrolling_sideways(phone: Page, engine: ToldEngine) -> None:
    engine.reply, engine.tokens_per_output = LONG, 50
    phone.ask_and_wait("A question " + "verylongword" * 12)
    for place in ("", "#engine"):
        if place:
            phone.open(place)
        widths = phone.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths == [360, 360]
    phone.open()
    for name in ("conversations", "settings"):
        phone.find(f"#toggle-{name}").click()
        assert phone.find(f"#{name}").is_displayed()
        assert phone.run("return document.documentElement.scrollWidth") == 360
        box = phone.find("#send").rect
        assert box["x"] + box["width"] <= 360
        assert box["y"] + box["height"] <= 740
        assert box["height"] >= 40
        phone.find(f"#toggle-{name}").click()


def test_a_phone_wastes_no_line(phone: Page) -> None:
    """What belongs in one line is in one, and a number stays beside its unit."""
    heights = (
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.getBoundingClientRect())"
        ".filter((box) => box.height).map((box) => [box.top + box.height / 2, box.height])"
    )
    for css in ("header > *", "nav > a", ".toolbar > button"):
        middles, sizes = zip(*phone.run(heights, css), strict=True)
        assert max(middles) - min(middles) < 4, css
        assert max(sizes) < 48, css
    phone.open("#engine")
    row = (
        "const row = document.querySelector('#latencies tr'); row.cells[0].textContent = 'x';"
        "for (const cell of [...row.cells].slice(1)) cell.textContent = '123.4 ms'; return row.offsetHeight"
    )
    assert phone.run(row) < 48


@pytest.mark.parametrize("scheme", SCHEMES)
def test_light_and_dark_can_be_read(page: Page, engine: ToldEngine, scheme: str) -> None:
    other = next(name for name in SCHEMES if name != scheme)
    page.ask_and_wait("Hi")
    for preferred, chosen in ((scheme, "auto"), (other, scheme)):
        prefer(page, preferred)
        while page.text("theme") != f"Theme: {chosen}":
            page.find("#theme").click()
        text, behind = colours(page, "body")
        assert (behind < 0.05) == (scheme == "dark")
        for css in (
            "body",
            ".message.user > .text",
            ".message > h3",
            "#send",
            "#prompt-hint",
            ".small",
            "#settings > p",
        ):
            text, behind = colours(page, css)
            contrast = (max(text, behind) + 0.05) / (min(text, behind) + 0.05)
            assert contrast >= 4.5, (css, contrast)
    page.open()
    assert page.text("theme") == f"Theme: {scheme}"
    assert page.run("return document.documentElement.dataset.theme") == scheme
    prefer(page, "")


def test_the_policy_lets_no_script_or_style_in(page: Page) -> None:
    attempts = (
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').text = 'window.hacked = 1'",
        "document.body.setAttribute('onclick', 'window.hacked = 1')",
        "setTimeout('window.hacked = 1')",
    )
    for attempt in attempts:
        with pytest.raises(JavascriptException, match="Trusted"):
            page.run(attempt)
    page.run(
        "const style = document.createElement('style'); style.textContent = 'body { color: red }';"
        "document.head.append(style); document.head.append(Object.assign(document.createElement('img'),"
        " { src: 'data:,' }))"
    )
    complaints = page.wait(page.complaints)
    assert all(
        "Content Security Policy" in one or "TrustedScript" in one or "TrustedHTML" in one
        for one in complaints
    )
    assert page.run("return window.hacked") is None
