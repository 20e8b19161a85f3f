"""The direct write on asyncio: pinned to the method it replaces, and right when the kernel takes a part."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import inspect
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, RawData, Updated

from triolet.web import fast_write_asyncio as fast_write

# The method of Hypercorn 0.18.0. If this fails after an update: read the new one, then adapt ours.
TESTED_SOURCE = "06144915fc094c1b4e1dc99197a0f0fd3725f642f613a2d96acb5a1458e80031"

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["plain", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    if request.param[1]["use_uvloop"]:
        pytest.importorskip("uvloop")
    return request.param


async def connection() -> tuple[Any, socket.socket]:
    """A connection as the worker has it, and the client's socket."""
    left, right = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=left)
    handled: list[Any] = []

    async def handle(event: Any) -> None:
        handled.append(event)

    protocol = SimpleNamespace(handle=handle)
    server = SimpleNamespace(writer=writer, send_lock=asyncio.Lock(), protocol=protocol, handled=handled)
    return server, right


async def close(server: Any) -> None:
    server.writer.close()
    await server.writer.wait_closed()


def test_the_replaced_method_is_the_one_that_was_tested() -> None:
    source = inspect.getsource(fast_write._send_the_long_way)
    assert hashlib.sha256(source.encode()).hexdigest() == TESTED_SOURCE


async def test_a_small_event_is_written_at_once_and_a_large_one_whole_and_in_order() -> None:
    server, peer = await connection()
    with peer:
        await fast_write._protocol_send(server, RawData(b"small"))
        assert peer.recv(10) == b"small"
        large = bytes(range(256)) * 20_000
        received = bytearray()

        def read() -> None:
            while len(received) < len(large) + 3:
                received.extend(peer.recv(65536))

        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(read))
            await fast_write._protocol_send(server, RawData(large))
            await fast_write._protocol_send(server, RawData(b"end"))
        assert bytes(received) == large + b"end"
        await close(server)


async def test_what_waits_in_the_transport_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    long_way: list[Any] = []

    async def record(self: Any, event: Any) -> None:
        long_way.append(event)

    monkeypatch.setattr(fast_write, "_send_the_long_way", record)
    server, peer = await connection()
    with peer:
        server.writer.write(bytes(8_000_000))
        await fast_write._protocol_send(server, RawData(b"x"))
        assert long_way == [RawData(b"x")]
        server.writer.transport.abort()


async def test_a_peer_that_has_gone_closes_the_connection() -> None:
    server, peer = await connection()
    peer.close()
    await fast_write._protocol_send(server, RawData(b"x"))
    assert [type(event) for event in server.handled] == [Closed]
    server.writer.transport.abort()


async def test_a_peer_that_the_kernel_gives_up_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes nothing: what then fails is no ``ConnectionError``, and was logged as ours."""

    async def time_out(self: Any, event: Any) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(fast_write, "_send_the_long_way", time_out)
    server, peer = await connection()
    with peer:
        server.writer.write(bytes(8_000_000))
        await fast_write._protocol_send(server, RawData(b"x"))
        assert [type(event) for event in server.handled] == [Closed]
        server.writer.transport.abort()


async def test_other_events_a_busy_connection_and_a_closing_one_go_the_long_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long_way: list[Any] = []

    async def record(self: Any, event: Any) -> None:
        long_way.append(event)

    monkeypatch.setattr(fast_write, "_send_the_long_way", record)
    server, peer = await connection()
    with peer:
        await fast_write._protocol_send(server, Updated(idle=True))
        async with server.send_lock:
            await fast_write._protocol_send(server, RawData(b"x"))
        server.writer.close()
        await fast_write._protocol_send(server, RawData(b"y"))
        assert long_way == [Updated(idle=True), RawData(b"x"), RawData(b"y")]


def test_it_takes_the_place_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TCPServer, "protocol_send", fast_write._send_the_long_way)
    fast_write.install_fast_write()
    assert TCPServer.protocol_send is fast_write._protocol_send
