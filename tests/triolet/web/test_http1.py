"""HTTP/1 connections: bytes sent ahead, clients that leave, and what is not spoken."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import socket
from typing import Any

import anyio
import h11
import pytest
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.serving import events_of, read_to_end, read_until, request_bytes, serving

from triolet.web.http1 import MAX_EARLY_BYTES

pytestmark = pytest.mark.anyio

# The methods of Hypercorn 0.18.0. If this fails after an update: read the new ones, then adapt ours.
TESTED_SOURCE = "ac872d087eb45d4ef838c4949775dab7c311d0499abcd3fd82e192d2977796cf"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = {"prompt": "hi", "max_tokens": 4}


def test_the_overridden_methods_are_those_that_were_tested() -> None:
    names = (
        "__init__",
        "handle",
        "stream_send",
        "_handle_events",
        "_maybe_recycle",
        "_check_protocol",
        "_create_stream",
        "_send_h11_event",
        "_send_error_response",
    )
    methods = [getattr(H11Protocol, name) for name in names] + [HTTPStream.app_send]
    source = "".join(map(inspect.getsource, methods))
    assert hashlib.sha256(source.encode()).hexdigest() == TESTED_SOURCE


@pytest.mark.parametrize("pieces", [1, 7])
async def test_requests_sent_ahead_are_answered_in_order(anyio_backend_name: str, pieces: int) -> None:
    texts = [f"prompt {number}" * 50 for number in range(6)]
    wire = b"\r\n".join(request_bytes("/v1/completions", BODY | {"prompt": text}) for text in texts)
    size = -(-len(wire) // pieces)
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        for start in range(0, len(wire), size):
            await stream.send(wire[start : start + size])
        received = b""
        with anyio.fail_after(30):
            while received.count(b"finish_reason") < len(texts):
                received += await stream.receive()
        await stream.send(request_bytes("/v1/completions", BODY))
        await read_until(stream, b"finish_reason")
    assert received.count(b"HTTP/1.1 200") == len(texts)
    assert [prompt for prompt, _, _ in running.engine.submitted] == [*texts, "hi"]


async def test_an_empty_line_before_a_request_may_come_in_two_parts(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await anyio.wait_all_tasks_blocked()
        await stream.send(b"\r")
        await anyio.wait_all_tasks_blocked()
        await stream.send(b"\n" + request_bytes("/v1/completions", BODY))
        assert (await read_until(stream, b"finish_reason")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("tail", [b"\r\n", request_bytes("/v1/completions", BODY)[:-3]])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_they_hide_no_disconnect_and_leave_nothing_open(
    anyio_backend_name: str, is_streamed: bool, tail: bytes
) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running:
        await running.client.get("/live")
        num_files = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            client = socket.create_connection(("127.0.0.1", running.port))
            client.sendall(request_bytes("/v1/completions", BODY | {"stream": is_streamed}) + tail)
            await engine.wait_open(1)
            client.close()
            with anyio.fail_after(10):
                await engine.wait_idle()
        await running.client.get("/live")
        assert len(os.listdir("/proc/self/fd")) <= num_files


async def test_who_sends_too_much_ahead_is_disconnected(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", BODY))
        await engine.wait_open(1)
        error: Any = None
        with anyio.fail_after(30):
            while error is None:
                try:
                    await stream.send(b"x" * MAX_EARLY_BYTES)
                except anyio.BrokenResourceError as broken:
                    error = broken
            await engine.wait_idle()


@pytest.mark.parametrize("wire", [b"", b"GET /live HTTP/1.1\r\nHost: test\r\n\r\n", b"GET /li"])
@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_a_client_that_has_left_is_let_go_at_once(
    anyio_backend_name: str, wire: bytes, is_half_closed: bool
) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        await running.client.get("/live")
        num_files = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            async with await running.connect() as stream:
                await stream.send(wire)
                if wire.endswith(b"\r\n\r\n"):
                    await read_until(stream, b"live")
                if is_half_closed:
                    await stream.send_eof()
                    await read_to_end(stream)
        with anyio.fail_after(30):
            while len(os.listdir("/proc/self/fd")) > num_files:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET /live HTTP/3.1\r\nHost: test\r\n\r\n", b"505"),
        (b"GET /live HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 100_000, b"431"),
        (b"POST /live HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (request_bytes("/v1/completions", BODY, headers="Transfer-Encoding: chunked\r\n"), b"400"),
        (CHUNKED + b"zz\r\n", b"400"),
        (CHUNKED + b"7fffffffffff\r\n", b"413"),
        (CHUNKED + b"1\r\n{\r\nffffffffffffffffffff\r\n", b"413"),
    ],
)
async def test_what_is_not_spoken_is_refused_and_ends_the_connection(
    anyio_backend_name: str, wire: bytes, status: bytes
) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(wire)
        received = await read_to_end(stream)
        assert received.startswith(b"HTTP/1.1 " + status)
        assert received.count(b"HTTP/1.1 ") == 1
        error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
        assert error["message"].startswith("The request cannot be read")
        assert (error["type"], error["param"]) == ("invalid_request_error", None)
        assert running.engine.submitted == []


async def test_an_error_for_head_has_no_body(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(b"HEAD /live HTTP/3.1\r\nHost: test\r\n\r\n")
        received = await read_to_end(stream)
    assert received.startswith(b"HTTP/1.1 505")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "offer",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\n",
    ],
    ids=["h2c", "websocket"],
)
async def test_an_offer_of_another_protocol_is_not_taken_up(anyio_backend_name: str, offer: bytes) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(b"GET /live HTTP/1.1\r\nHost: test\r\n" + offer + b"\r\n")
        assert (await read_until(stream, b"live")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_streams_are_framed_as_the_version_has_it(anyio_backend_name: str, version: str) -> None:
    """Pieces of a stream go by a short way; h11 undoes their framing, and HTTP/1.0 knows none."""
    body = BODY | {"stream": True, "prompt": "hé", "max_tokens": 40}
    request = request_bytes("/v1/completions", body, headers="Connection: close\r\n", version=version)
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request)
        received = await read_to_end(stream)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(received)
    client.receive_data(b"")
    events: list[Any] = []
    while not events or not isinstance(events[-1], h11.EndOfMessage):
        events.append(client.next_event())
    text = b"".join(event.data for event in events if isinstance(event, h11.Data)).decode()
    assert "".join(e["choices"][0]["text"] for e in events_of(text)[:-1]) == REPLY
    assert text.endswith("data: [DONE]\n\n")
    is_chunked = b"transfer-encoding: chunked" in received.lower()
    assert is_chunked == (version == "1.1")


async def test_an_answer_to_head_has_no_body(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = await read_to_end(stream)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_head_goes_out_with_what_follows_it(
    anyio_backend_name: str, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = os.write

    def noting_write(file: int, data: bytes) -> int:
        written.append(data)
        return write(file, data)

    monkeypatch.setattr(os, "write", noting_write)
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        written.clear()  # of what asked whether the server is ready
        await stream.send(request_bytes("/v1/completions", BODY | {"stream": is_streamed}))
        await read_until(stream, b"0\r\n\r\n" if is_streamed else b"usage")
    assert written[0].startswith(b"HTTP/1.1 200")
    assert (b"data: " if is_streamed else b"usage") in written[0]
    assert is_streamed or len(written) == 1


async def test_an_interim_answer_is_not_held_back(anyio_backend_name: str) -> None:
    request = request_bytes("/v1/completions", BODY, headers="Expect: 100-continue\r\n")
    head, end, body = request.partition(b"\r\n\r\n")
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(head + end)
        assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await stream.send(body)
        assert b"HTTP/1.1 200" in await read_until(stream, b"usage")
