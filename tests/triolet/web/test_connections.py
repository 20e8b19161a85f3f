"""Too many connections: who makes room, who is turned away, and that probes and answers go on."""

from __future__ import annotations

import hashlib
import inspect
import logging
import resource
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import hypercorn.asyncio.tcp_server
import hypercorn.trio.tcp_server
import pytest
import trustme
from anyio.lowlevel import checkpoint
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_to_end, read_until, request_bytes, serving

from triolet.web import connections, http_server
from triolet.web.connections import Connections, connection_limit, has_unread

pytestmark = pytest.mark.anyio

LIMIT, NUM_SPARE = 4, 2
LIVE = b"GET /live HTTP/1.1\r\nHost: test\r\n\r\n"
BODY = {"prompt": "hi", "stream": True}
# The methods of Hypercorn 0.18.0. If this fails after an update: read the new ones, then adapt ours.
TESTED_SOURCE = "ef2ff417983d3d3ea4b90773538141bf84f0eca5717cdde92d6f3a34d747bfdd"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "connection_limit", lambda _: LIMIT)
    monkeypatch.setattr(connections, "NUM_SPARE", NUM_SPARE)


def test_the_methods_relied_on_are_those_that_were_tested() -> None:
    source = "".join(
        inspect.getsource(getattr(server, name))
        for server in (hypercorn.asyncio.tcp_server.TCPServer, hypercorn.trio.tcp_server.TCPServer)
        for name in ("run", "_read_data", "_idle_timeout")
    )
    assert hashlib.sha256(source.encode()).hexdigest() == TESTED_SOURCE


@pytest.mark.parametrize(
    ("num_files", "expected"),
    [
        (20, 16),
        (256, 160),
        (1024, 736),
        (1 << 20, (1 << 20) * 3 // 4 - 32),
        (resource.RLIM_INFINITY, sys.maxsize),
    ],
)
def test_the_limit_leaves_files_for_all_else(
    monkeypatch: pytest.MonkeyPatch, num_files: int, expected: int
) -> None:
    monkeypatch.undo()
    assert connection_limit(num_files) == expected


def test_the_one_that_has_waited_longest_goes_first() -> None:
    open_ones: Connections[str] = Connections(2)
    assert [open_ones.enter(name) for name in "ab"] == [None, None]
    open_ones.work("a")
    open_ones.wait("a")  # so that it waits for less time than b
    assert open_ones.enter("c") == "b"
    assert open_ones.enter("d") == "a"
    open_ones.wait("a")  # it has gone, whatever is heard of it
    assert open_ones.enter("e") == "c"


def test_where_all_are_busy_some_more_are_taken_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    open_ones: Connections[int] = Connections(LIMIT)
    for _ in range(2):
        for number in range(LIMIT + NUM_SPARE):
            assert open_ones.enter(number) is None
            open_ones.work(number)
        assert open_ones.is_crowded
        assert open_ones.enter(10) == 10
        open_ones.leave(0)
        assert open_ones.enter(11) is None
        assert open_ones.enter(12) == 11
        open_ones.leave(12)
        for number in range(LIMIT + NUM_SPARE):
            open_ones.leave(number)
        assert not open_ones.is_crowded
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_those_that_have_waited_long_enough_are_told_once() -> None:
    now = 0.0
    open_ones: Connections[str] = Connections(4, clock=lambda: now)
    assert open_ones.seconds_left(30) == 30
    for name in "abc":
        open_ones.enter(name)
        now += 1
    open_ones.work("a")
    assert open_ones.seconds_left(30) == 28
    now = 31
    open_ones.wait("a")
    assert open_ones.take_idle(30) == ["b"]
    assert open_ones.seconds_left(30) == 1
    now = 60
    assert open_ones.take_idle(30) == ["c"]
    assert open_ones.take_idle(0) == ["a"]
    assert open_ones.take_idle(0) == []


def test_those_with_news_are_left_alone() -> None:
    now = 0.0
    news = {"a"}
    open_ones: Connections[str] = Connections(3, clock=lambda: now, has_news=lambda name: name in news)
    for name in "abc":
        open_ones.enter(name)
    assert open_ones.enter("d") == "b"
    now = 30
    assert open_ones.take_idle(30) == ["c", "d"]
    now = 59
    news.clear()
    assert open_ones.take_idle(30) == []
    news.add("a")
    assert [open_ones.enter(name) for name in "efghi"][:1] == [None]


@pytest.mark.parametrize("num_turns", range(4))
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_one_for_which_something_has_come_is_not_closed(
    anyio_backend_name: str, tmp_path: Path, is_tls: bool, num_turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it still lies in the kernel, or the loop has read it in one of its turns."""
    async with _one_connection(anyio_backend_name, tmp_path, is_tls, monkeypatch) as (client, made):
        client.sendall(LIVE)
        for _ in range(num_turns):
            await checkpoint()
        assert made.take_idle(0) == []
        assert (await anyio.to_thread.run_sync(client.recv, 4096)).startswith(b"HTTP/1.1 200")
        await anyio.wait_all_tasks_blocked()
        assert len(made.take_idle(0)) == 1


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_one_that_was_reset_has_nothing_for_anybody(
    anyio_backend_name: str, tmp_path: Path, is_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop closes its socket some turns before its own task hears of that."""
    async with _one_connection(anyio_backend_name, tmp_path, is_tls, monkeypatch) as (client, made):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with anyio.fail_after(10):
            while left := made.open_ones:
                assert not any(map(has_unread, left))
                await checkpoint()


@asynccontextmanager
async def _one_connection(
    backend: str, directory: Path, is_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[socket.socket, Connections[object]]]:
    """A client that has been answered once, and the connections of its server."""
    made: list[Connections[object]] = []

    def connections_of(*args: Any, **options: Any) -> Connections[object]:
        made.append(Connections(*args, **options))
        return made[0]

    monkeypatch.setattr(http_server, "Connections", connections_of)
    pair = trustme.CA()
    certificate = directory / "pair.pem"
    pair.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    context = ssl.create_default_context()
    pair.configure_trust(context)
    async with serving(FakeEngine(), backend, ssl_certfile=certificate if is_tls else None) as running:
        await running.client.aclose()
        client = await anyio.to_thread.run_sync(_connect, running.port, context if is_tls else None)
        with client:
            assert await anyio.to_thread.run_sync(_ask, client) == b"HTTP/1.1 200"
            await anyio.wait_all_tasks_blocked()
            yield client, made[0]


def _connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    return client if context is None else context.wrap_socket(client, server_hostname="127.0.0.1")


def _ask(client: socket.socket) -> bytes:
    client.sendall(LIVE)
    return client.recv(4096)[:12]


@pytest.mark.parametrize("wire", [b"", LIVE, LIVE[:-2]])
async def test_one_that_asks_for_nothing_is_closed_in_time(
    anyio_backend_name: str, wire: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_SECONDS", 0.1)
    engine = FakeEngine(hold_at=0)
    async with (
        serving(engine, anyio_backend_name) as running,
        await running.connect() as busy,
        await running.connect() as stream,
    ):
        await busy.send(request_bytes("/v1/completions", BODY))
        await engine.wait_open(1)
        await stream.send(wire)
        received = await read_to_end(stream)
        assert received.startswith(b"HTTP/1.1 200" if wire == LIVE else b"")
        engine.release()
        await read_until(busy, b"[DONE]")
        assert await read_to_end(busy) == b""


async def test_idle_connections_make_room(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await running.connect()) for _ in range(LIMIT + 3)]
        for stream in streams[3:]:
            await stream.send(LIVE)
            await read_until(stream, b"live")
        for stream in streams[:3]:
            assert await read_to_end(stream) == b""
        await streams[-1].send(LIVE)
        await read_until(streams[-1], b"live")


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_those_that_never_agree_on_tls_make_room_at_once(
    anyio_backend_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "pair.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    async with (
        serving(FakeEngine(), anyio_backend_name, ssl_certfile=certificate) as running,
        AsyncExitStack() as stack,
    ):
        silent = [await stack.enter_async_context(await running.connect()) for _ in range(2 * LIMIT)]
        for stream in silent[:LIMIT]:
            assert await read_to_end(stream, seconds=2) == b""
        assert (await running.client.get("/live")).status_code == 200


async def test_busy_ones_are_left_alone_and_probes_are_answered(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running, AsyncExitStack() as stack:

        async def connect(request: bytes) -> anyio.abc.SocketStream:
            stream = await stack.enter_async_context(await running.connect())
            await stream.send(request)
            return stream

        completion = request_bytes("/v1/completions", BODY)
        busy = [await connect(completion) for _ in range(LIMIT)]
        await engine.wait_open(LIMIT)
        for path in (b"/live", b"/ready?verbose=1"):
            await read_until(await connect(LIVE.replace(b"/live", path)), b"HTTP/1.1 200")
        refused = await read_to_end(await connect(completion))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in refused
        assert b"as many connections as it can take" in refused
        engine.release()
        for stream in busy:
            await read_until(stream, b"[DONE]")
        await read_until(await connect(completion), b"[DONE]")


async def test_those_beyond_the_spare_ones_are_closed(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "NUM_SPARE", 0)
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running, AsyncExitStack() as stack:
        for _ in range(LIMIT):
            busy = await stack.enter_async_context(await running.connect())
            await busy.send(request_bytes("/v1/completions", BODY))
        await engine.wait_open(LIMIT)
        async with await running.connect() as stream:
            assert await read_to_end(stream) == b""
        engine.release()
        await read_until(busy, b"[DONE]")
