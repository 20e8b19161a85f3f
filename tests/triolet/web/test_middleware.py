"""Connections that end when they should, and requests that the server can end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_to_end, read_until, request_bytes, serving

from triolet.web.middleware import DEPARTURE, Departure, FinalSendShield, OpenRequests

pytestmark = pytest.mark.anyio
BODY = {"prompt": "hi", "max_tokens": 4}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "options", [{"headers": "Connection: close\r\n"}, {"version": "1.0"}], ids=["close", "http/1.0"]
)
async def test_a_closing_connection_gets_its_end(
    anyio_backend_name: str, options: dict[str, str], is_streamed: bool
) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", BODY | {"stream": is_streamed}, **options))
        received = await read_to_end(stream)
    assert b"200" in received.splitlines()[0]
    assert b"finish_reason" in received


async def test_a_kept_connection_is_used_again_and_closed_when_the_server_stops(
    anyio_backend_name: str,
) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        for _ in range(3):
            await stream.send(request_bytes("/v1/completions", BODY | {"stream": True}))
            await read_until(stream, b"[DONE]\n\n\r\n0\r\n\r\n")
        with anyio.fail_after(10):
            await running.server.drain()
        assert await read_to_end(stream) == b""


@pytest.mark.parametrize("path", ["/nowhere", "/health", "/v1/completions"])
async def test_an_error_before_the_body_is_in_keeps_the_connection(
    anyio_backend_name: str, path: str
) -> None:
    whole = request_bytes(path, BODY)
    async with (
        serving(FakeEngine(), anyio_backend_name, api_key="k") as running,
        await running.connect() as stream,
    ):
        for _ in range(3):
            await stream.send(whole[:-5])
            await anyio.wait_all_tasks_blocked()
            await stream.send(whole[-5:])
            received = await read_until(stream, b'"code":')
            assert received.split()[1] in (b"401", b"404", b"405")


async def test_the_last_send_is_finished_though_the_handler_is_cancelled() -> None:
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await send({"type": "http.response.body", "more_body": False})

    async def send(message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        sent.append(message["type"])

    await FinalSendShield(app)({"type": "http"}, None, send)  # type: ignore[arg-type]
    assert sent == ["http.response.body"]


async def test_nobody_hears_of_a_disconnect_during_the_last_send() -> None:
    steps: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def hear() -> None:
            steps.append((await receive())["type"])

        async with anyio.create_task_group() as group:
            await send({"type": "http.response.body", "more_body": True})
            group.start_soon(hear)
            await send({"type": "http.response.body", "more_body": False})

    async def send(message: Any) -> None:
        await anyio.wait_all_tasks_blocked()
        steps.append("more" if message["more_body"] else "last")

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await FinalSendShield(app)({"type": "http"}, receive, send)
    assert steps == ["more", "last", "http.disconnect"]


async def test_open_requests_are_counted_awaited_and_ended() -> None:
    messages: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        messages.append((await receive())["type"])

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def start() -> None:
        await requests({"type": "http"}, receive, None)  # type: ignore[arg-type]

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        messages.append("refused")

    requests = OpenRequests(app, refuse)
    await requests.wait_idle()
    async with anyio.create_task_group() as group:
        group.start_soon(start)
        group.start_soon(start)
        await anyio.wait_all_tasks_blocked()
        assert requests.num_open == 2
        requests.disconnect_all()
        await requests.wait_idle()
        group.start_soon(start)
    assert requests.num_open == 0
    assert messages == ["http.disconnect", "http.disconnect", "refused"]


async def test_a_request_whose_body_never_comes_does_not_outlive_the_server(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", BODY)[:-3])
        await anyio.wait_all_tasks_blocked()
        assert (await running.client.get("/live")).status_code == 200
        assert running.server.num_open_requests >= 1
        with anyio.fail_after(30):
            await running.server.drain()
        assert running.server.num_open_requests == 0
    assert running.exits == []


async def test_a_request_that_is_called_and_does_not_ask_is_ended_as_well() -> None:
    departure = Departure()
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with anyio.CancelScope() as handling:
            departure.call(handling.cancel)
            await anyio.sleep_forever()
        ended.append(True)

    requests = OpenRequests(app, app)
    scope = {"type": "http", "extensions": {DEPARTURE: departure}}
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(requests, scope, None, None)  # type: ignore[arg-type]
            await anyio.wait_all_tasks_blocked()
            requests.disconnect_all()
    assert ended == [True]
    assert requests.num_open == 0


async def test_a_departure_is_told_of_early_late_and_twice() -> None:
    told: list[str] = []
    departure = Departure()
    departure.call(lambda: told.append("late"))
    departure.tell()
    departure.call(lambda: told.append("at once"))
    departure.tell()
    assert told == ["late", "at once", "at once"]
