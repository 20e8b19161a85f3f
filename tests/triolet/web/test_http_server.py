"""What is peculiar to Hypercorn's workers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import events_of, request_bytes, serving

from triolet.args import ServeArgs
from triolet.web import http_server
from triolet.web.listener import listen

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


async def test_a_unix_socket_serves_as_an_address_does(anyio_backend_name: str, tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name, uds=tmp_path / "s", access_log="json") as running:
        body = {"prompt": "x", "stream": True, "max_tokens": 5}
        events = events_of((await running.client.post("/v1/completions", json=body)).text)
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "Hello"
        engine.hold_at = 0
        async with await anyio.connect_unix(tmp_path / "s") as stream:
            await stream.send(request_bytes("/v1/completions", body))
            await engine.wait_open(1)
        with anyio.fail_after(30):
            await engine.wait_idle()
    assert f"ready at the socket {tmp_path / 's'}, http://localhost" in running.lines[0]
    assert f"--unix-socket {tmp_path / 's'} http://localhost/v1" in running.lines[1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_connections_that_are_cut_off_in_the_end_are_no_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that read nothing; each is cut off a moment after the other."""
    monkeypatch.setattr(http_server, "GRACEFUL_SECONDS", 0.05)
    num_sending, all_are_sending, must_stop = 0, anyio.Event(), anyio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal num_sending
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        num_sending += 1
        if num_sending == 8:
            all_are_sending.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 25), "more_body": True})

    app: Any = answer
    is_over = anyio.Event()

    async def serve() -> None:
        await http_server.serve_http(app, listener, "asyncio", must_stop.wait)
        is_over.set()

    listener = listen(ServeArgs(host="127.0.0.1", port=0))
    port = listener.getsockname()[1]
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        for _ in range(8):
            stream = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            await stream.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        with anyio.fail_after(30):
            await all_are_sending.wait()
            must_stop.set()
        with anyio.fail_after(30):
            await is_over.wait()
    await anyio.wait_all_tasks_blocked()
    assert caplog.records == []
