"""A browser for all tests here, and for each module a server in a thread of its own.

Its engine says what it is told to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from tests.browser.page import Browser, Page, open_browser
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.statistics import EngineStatistics

WIDTH, HEIGHT = 1280, 860


class ToldEngine(FakeEngine):
    """An engine behind ``url``. What changes its state is done in its own thread, by ``portal``."""

    portal: BlockingPortal
    url: str
    told: EngineStatistics | None = None

    def reset(self, reply: str) -> None:
        """As it was in the beginning, but for what it says."""
        self.portal.call(self.abort_all, "reset")
        self.portal.call(self.wait_open, 0)
        self.reply, self.hold_at, self.refusal = reply, None, None
        self.is_endless = self.is_slow = False
        self.told, self.ranks = None, ()
        self.submitted.clear()
        self.aborted.clear()

    def statistics(self) -> EngineStatistics:
        return self.told or super().statistics()

    def let_go(self, hold_at: int | None = None) -> None:
        self.portal.call(self.release, hold_at)

    def wait_for(self, num_open: int) -> None:
        self.portal.call(self.wait_open, num_open)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    browser = open_browser()
    browser.set_window_size(WIDTH, HEIGHT)
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, browser: Browser) -> Iterator[ToldEngine]:
    """The engine of the module's server. ``OPTIONS`` of the module are the server's."""
    engine: Any = ToldEngine()
    options = getattr(request.module, "OPTIONS", {})
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(
            serving(engine, "asyncio", obeys_signals=False, **options)
        ) as running,
    ):
        engine.portal, engine.url = portal, f"http://127.0.0.1:{running.port}"
        yield engine
        browser.get("about:blank")  # which closes its connections


@pytest.fixture
def engine(served: ToldEngine) -> ToldEngine:
    served.reset("Hello, wörld 🙂 and more")
    return served


@pytest.fixture
def modules(browser: Browser, served: ToldEngine) -> Page:
    """A page for what its modules compute, whatever it shows: loading it anew takes a second."""
    return Page(browser, served.url, is_used=True)


@pytest.fixture
def page(browser: Browser, engine: ToldEngine) -> Iterator[Page]:
    """The page, just opened. Afterwards nothing was found wrong by the browser."""
    page = Page(browser, engine.url)
    page.sent_bodies()
    page.complaints()
    yield page
    assert page.complaints() == []
