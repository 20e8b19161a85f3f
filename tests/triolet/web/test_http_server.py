"""What is peculiar to Hypercorn's workers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from triolet.web import http_server

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_only_vanished_peers_are_kept_out_of_the_log() -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    told: list[Any] = []
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    try:
        with http_server._vanished_peers_are_no_errors():
            lost, bug = TimeoutError("gone"), ValueError("bug")
            loop.call_exception_handler({"message": "m", "exception": lost, "transport": object()})
            loop.call_exception_handler({"message": "m", "exception": asyncio.CancelledError()})
            loop.call_exception_handler({"message": "m", "exception": lost})
            loop.call_exception_handler({"message": "m", "exception": bug, "transport": object()})
        loop.call_exception_handler({"message": "m", "exception": asyncio.CancelledError()})
    finally:
        loop.set_exception_handler(before)
    assert told[:2] == [lost, bug]
    assert isinstance(told[2], asyncio.CancelledError)


def test_an_untested_hypercorn_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "version", lambda name: "0.19.0")
    monkeypatch.setattr(http_server, "install_http1", lambda: pytest.fail("it was patched"))
    with caplog.at_level(logging.WARNING):
        http_server._install_patches("trio")
    assert "0.19.0" in caplog.text
